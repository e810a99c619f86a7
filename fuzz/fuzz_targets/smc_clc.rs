//! What a peer says over TCP before a connection is SMC's.
#![no_main]

use smc::clc::{Frame, Message, frame};
use smc::handshake::{Client, Identity, LocalEnd, Server, Step};
use smc::{Gid, Limits, Mac, Mtu, SystemId, Time, Token};

fn identity() -> Identity {
    let eids = vec!["A".parse().expect("an EID")];
    let (system, mac) = (SystemId([1; 8]), Mac([2; 6]));
    Identity { system, gid: Gid([3; 16]), mac, host: [b' '; 32], eids, answers_marks: true }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // One message: what was read is written as it was.
    match frame(bytes) {
        Ok(Frame::Whole(len)) => {
            if let Ok(message) = Message::parse(&bytes[..len]) {
                assert_eq!(message.emit(), &bytes[..len]);
            }
        }
        Ok(Frame::Needs(more)) => assert!(more > 0),
        Err(_) => assert!(Message::parse(bytes).is_err()),
    }
    // All of them, to either side.
    let mut client = Client::new(identity(), Limits::default(), Time::default());
    let mut server = Server::new(identity(), Limits::default(), Time::default());
    let end = LocalEnd { token: Token(1), mtu: Mtu::BYTES_1024, ..LocalEnd::default() };
    let mut rest = bytes;
    while let Ok(Frame::Whole(len)) = frame(rest) {
        let message;
        (message, rest) = rest.split_at(len);
        client.on_bytes(message);
        server.on_bytes(message);
        while let Some(step) = client.poll() {
            match step {
                Step::Prepare(_) => client.confirm(&end, &[]),
                Step::Send(bytes) => assert_eq!(frame(&bytes), Ok(Frame::Whole(bytes.len()))),
                _ => {}
            }
        }
        while let Some(step) = server.poll() {
            match step {
                Step::FindGroup(_) => server.accept(&end, len % 2 == 0, Time::default()),
                Step::Send(bytes) => assert_eq!(frame(&bytes), Ok(Frame::Whole(bytes.len()))),
                _ => {}
            }
        }
    }
});
