//! Tests that need a whole kernel, whole programs or the whole workspace; one module a subject.

mod counted;
mod defrag;
mod defrag_kernel;
mod defrag_live;
mod differential;
mod entry_points;
mod fuzzed;
mod hostile;
mod kills;
mod lifecycle;
mod option;
mod oracle;
mod pairs;
mod programs;
mod reasons;
mod remote;
mod seen;
mod serve;
mod serve_carried;
mod serve_kerberos;
mod serve_safety;
mod serve_seen;
mod serve_systemd;
mod tidy;
mod trust;
mod watchdog;
