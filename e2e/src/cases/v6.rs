//! IPv6, and IPv4 in its clothes. The cases of `states` and `early` run over ::1 as well.

use std::net::IpAddr;

use crate::calls::{self, address};
use crate::say;
use crate::stage::{Conn, Role, Stage};

/// Where somebody listens, and by which address of it the other one connects.
const ENDS: &[(&str, &str)] = &[
    ("::1", "::1"),
    ("::", "::1"),
    ("::", "127.0.0.1"),
    ("::", "::ffff:127.0.0.1"),
    ("::ffff:127.0.0.1", "127.0.0.1"),
    ("127.0.0.1", "::ffff:127.0.0.1"),
    ("0.0.0.0", "::ffff:127.0.0.1"),
    ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn connection(s: &mut Stage, listen: &str, connect: &str) -> Conn {
    match s.role() {
        Role::Client => {
            let answer = s.b(&format!("listen_at {listen}"));
            let (listener, port) = answer.split_once(' ').expect("a listener");
            let a = calls::prompt_socket_of(address::family_of(ip(connect)), 0).expect("a socket");
            let port = port.parse().expect("a port");
            address::connect_to(a, ip(connect), port).expect("a connection");
            let b = Stage::number(&s.b(&format!("accept {listener}")));
            let _ = s.b(&format!("close {listener}"));
            Conn { a, b }
        }
        Role::Server => {
            let listener =
                calls::prompt_socket_of(address::family_of(ip(listen)), 0).expect("a socket");
            address::bind_to(listener, ip(listen), 0).expect("bound");
            calls::listen(listener, 4).expect("a listener");
            let port = calls::local_port(listener).expect("a port");
            let b = Stage::number(&s.b(&format!("connect_to {connect} {port}")));
            let (a, from) = address::accept_from(listener).expect("a connection");
            say!("from", from.ip().to_string());
            calls::close(listener).expect("closed");
            Conn { a, b }
        }
    }
}

/// Both ends know one connection by different names, and meet all the same.
pub fn mapped_addresses(s: &mut Stage) {
    for (listen, connect) in ENDS {
        let before = s.attached_by_both();
        let c = connection(s, listen, connect);
        s.until_attached(c, before);
        let name = |at: Result<std::net::SocketAddr, i32>| at.map(|a| a.ip().to_string());
        say!(*listen, *connect, name(address::local(c.a)).expect("a name"));
        say!("remote", name(address::remote(c.a)).expect("a name"));
        s.tell(&format!("sendn {} 300000 7", c.b));
        say!("there", crate::peer::receive_stream(c.a, 300_000, 7), s.answer());
        s.tell(&format!("recvn {} 300000 8", c.b));
        say!("back", crate::peer::send_stream(c.a, 300_000, 8), s.answer());
        say!("the end", s.b_close(c), calls::recv(c.a, 9, 0), calls::close(c.a));
    }
}
