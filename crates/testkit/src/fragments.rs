//! Fragments of IPv4 and IPv6 packets, for whoever puts them together: packets field by field, named
//! cases with what should come of them, and random ways to cut and to order.

pub mod cases;
pub mod packet;
pub mod random;

pub use cases::{Case, cases};
pub use packet::{Family, Packet, checksum};
pub use random::{Cut, ORDERS, Order, Random, cut, cut_unevenly};
