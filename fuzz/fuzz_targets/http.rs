//! Requests to the address of metrics, which anybody on the network may send, in pieces of any size.
//!
//! The first byte says how large the pieces are; the rest is the request.
#![no_main]

use std::io::{self, Read, Write};

#[expect(dead_code, reason = "the module of the engine; one exchange is what is fuzzed")]
#[path = "../../crates/engine/src/metrics.rs"]
mod metrics;

/// A connection: what comes, how much of it at a time, and what was answered.
struct Peer<'a> {
    request: &'a [u8],
    piece: usize,
    taken: usize,
    answer: Vec<u8>,
}

impl Read for Peer<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.piece.min(into.len()).min(self.request.len());
        let (now, later) = self.request.split_at(len);
        into[..len].copy_from_slice(now);
        self.request = later;
        self.taken += len;
        Ok(len)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const PAGE: &str = "shunt_smb_sessions 1\n";

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (piece, request) = bytes.split_first().map_or((1, bytes), |(piece, rest)| (*piece, rest));
    let piece = usize::from(piece).max(1);
    let mut peer = Peer { request, piece, taken: 0, answer: Vec::new() };
    metrics::exchange(&mut peer, &|| PAGE.to_owned()).expect("a connection that does not break");
    assert!(peer.taken <= metrics::REQUEST_MAX, "{} bytes of a request were taken", peer.taken);
    // One answer, as long as it says, that is the page only for who asked for that.
    let answer = String::from_utf8(peer.answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    assert_eq!(len.and_then(|len| len.parse().ok()), Some(body.len()));
    assert_eq!(head.starts_with("HTTP/1.1 200 OK"), body == PAGE);
    assert!(body != PAGE || request.starts_with(b"GET /metrics"), "{head}");
});
