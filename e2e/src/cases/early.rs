//! Connections that both programs wait for in event sets before their first byte: under Shunt they are
//! attached then, so that nothing of the program's ever goes by TCP.

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT,
    EPOLLRDHUP,
};

use crate::calls;
use crate::say;
use crate::stage::{SETTLE, Stage};

type Events = Result<Vec<(u32, u64)>, i32>;

const ASKED: i32 = EPOLLIN | EPOLLRDHUP;

/// What comes within 40 ms.
fn soon(ep: i32) -> Events {
    calls::epoll_wait(ep, 8, 40)
}

fn next(ep: i32) -> Events {
    calls::epoll_wait(ep, 8, 5000)
}

/// A request and an answer, and the end.
pub fn met_request_and_answer(s: &mut Stage) {
    let (c, ep) = s.met_pair(ASKED);
    say!("nothing yet", soon(ep));
    s.b_send(c, "first");
    say!("bytes", next(ep), calls::recv(c.a, 99, libc::MSG_DONTWAIT), soon(ep));
    say!("sent", calls::send(c.a, b"answer", 0), s.b_recv(c, 99));
    say!("sent again", calls::send(c.a, b"more", 0), s.b_recv(c, 99));
    s.b_close(c);
    say!("the end", next(ep), calls::recv(c.a, 99, 0), calls::recv(c.a, 99, 0));
    say!("masks", s.mask(c.a), calls::peer_port(c.a).is_ok(), calls::tcp_state(c.a));
}

/// We write first, whichever end we are.
pub fn met_we_speak_first(s: &mut Stage) {
    let (c, ep) = s.met_pair(ASKED | EPOLLOUT);
    say!("room", soon(ep));
    say!("sent", calls::send(c.a, b"first", 0), s.b_recv(c, 99));
    s.b_send(c, "answer");
    say!("bytes", next(ep), calls::recv(c.a, 99, 0));
    say!("only room", calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, ASKED, 2), soon(ep));
    calls::close(c.a).expect("closed");
    say!("the peer", s.b_mask(c), s.b_recv(c, 9));
}

/// Edges are told once.
pub fn met_edges(s: &mut Stage) {
    let (c, ep) = s.met_pair(ASKED | EPOLLOUT | EPOLLET);
    say!("room", soon(ep), soon(ep));
    s.b_send(c, "one");
    say!("one", next(ep), soon(ep));
    s.b_send(c, "two");
    say!("two", next(ep), soon(ep), calls::recv(c.a, 99, 0));
    s.b_shutdown(c, libc::SHUT_WR);
    say!("the end", next(ep), soon(ep), calls::recv(c.a, 99, 0));
}

/// Large streams both ways, from the first byte on.
pub fn met_streams(s: &mut Stage) {
    let (c, _) = s.met_pair(ASKED);
    s.tell(&format!("sendn {} 300000 7", c.b));
    say!("there", crate::peer::receive_stream(c.a, 300_000, 7), s.answer());
    s.tell(&format!("recvn {} 300000 8", c.b));
    say!("back", crate::peer::send_stream(c.a, 300_000, 8), s.answer());
}

/// The peer closes, with and without something unread, before we have done anything.
pub fn met_and_closed(s: &mut Stage) {
    let (c, ep) = s.met_pair(ASKED);
    s.b_close(c);
    say!("end", next(ep), s.mask(c.a), calls::recv(c.a, 9, 0));
    say!("sent after", calls::send(c.a, b"x", libc::MSG_NOSIGNAL));
    std::thread::sleep(SETTLE);
    say!("and then", calls::send(c.a, b"x", libc::MSG_NOSIGNAL), s.mask(c.a));
    let (c, ep) = s.met_pair(ASKED);
    say!("sent", calls::send(c.a, b"never read", 0));
    s.b_close(c);
    say!("reset", next(ep), s.mask(c.a), calls::recv(c.a, 9, 0), calls::recv(c.a, 9, 0));
}

/// What no ring can carry comes first of all.
pub fn met_and_back_to_tcp(s: &mut Stage) {
    let (c, ep) = s.met_pair(ASKED);
    say!("urgent", calls::send(c.a, b"!", libc::MSG_OOB), calls::send(c.a, b"plain", 0));
    say!("arrives", s.b_recv(c, 9), s.b(&format!("recvnow {} 1 1", c.b)));
    s.b_send(c, "answer");
    say!("answer", next(ep), calls::recv(c.a, 99, 0), soon(ep));
}

/// From one set to another, on which a thread sleeps already.
pub fn met_after_a_move(s: &mut Stage) {
    let c = s.fresh_pair();
    let (one, two) = (calls::epoll_create().expect("a set"), calls::epoll_create().expect("a set"));
    let waiting = std::thread::spawn(move || next(two));
    std::thread::sleep(SETTLE);
    say!("added", calls::epoll_ctl(one, EPOLL_CTL_ADD, c.a, ASKED, 1));
    say!("moved", calls::epoll_ctl(one, EPOLL_CTL_DEL, c.a, 0, 0));
    say!("there", calls::epoll_ctl(two, EPOLL_CTL_ADD, c.a, ASKED, 2));
    std::thread::sleep(SETTLE);
    s.b(&format!("watch {} {ASKED}", c.b));
    s.b_send(c, "first");
    say!("woken", waiting.join().expect("no panic"), calls::recv(c.a, 99, libc::MSG_DONTWAIT));
    say!("sent", calls::send(c.a, b"answer", 0), s.b_recv(c, 99), soon(one));
}

/// A one-shot registration fires once, whether or not the two meet after it.
pub fn met_after_one_shot(s: &mut Stage) {
    let c = s.fresh_pair();
    let ep = calls::epoll_create().expect("a set");
    say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, ASKED | EPOLLOUT | EPOLLONESHOT, 1));
    say!("room", soon(ep), soon(ep));
    s.b(&format!("watch {} {ASKED}", c.b));
    say!("met", soon(ep));
    s.b_send(c, "first");
    say!("bytes", soon(ep), calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, ASKED | EPOLLONESHOT, 2));
    say!("armed", next(ep), soon(ep), calls::recv(c.a, 99, 0));
}

/// A one-shot registration from before both ends have met, for the end of the peer alone.
pub fn met_after_one_shot_for_the_end(s: &mut Stage) {
    for asked in [EPOLLRDHUP, EPOLLRDHUP | EPOLLET] {
        let c = s.fresh_pair();
        let ep = calls::epoll_create().expect("a set");
        say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, asked | EPOLLONESHOT, 1));
        say!("bytes", calls::send(c.a, b"first", 0), s.b_recv(c, 99), s.b_send(c, "answer"));
        say!("more", calls::recv(c.a, 99, 0), calls::send(c.a, b"next", 0), s.b_recv(c, 99));
        say!("the end", s.b_shutdown(c, libc::SHUT_WR), next(ep), soon(ep), s.mask(c.a));
        say!(
            "armed",
            calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, asked | EPOLLONESHOT, 2),
            next(ep),
            soon(ep)
        );
    }
}

/// Bytes are on their way when the other end begins to wait for them.
pub fn met_with_bytes_on_the_way(s: &mut Stage) {
    let c = s.fresh_pair();
    s.b(&format!("watch {} {ASKED}", c.b));
    s.b_send(c, "early");
    std::thread::sleep(SETTLE);
    let ep = calls::epoll_create().expect("a set");
    say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, ASKED, 3), next(ep));
    say!("bytes", calls::recv(c.a, 99, 0), calls::send(c.a, b"answer", 0), s.b_recv(c, 99));
    s.b_send(c, "again");
    say!("again", next(ep), calls::recv(c.a, 99, 0));
    s.b_close(c);
    say!("the end", next(ep), calls::recv(c.a, 99, 0));
}
