//! Captures for `shunt defrag`, which anybody may have written.
#![no_main]

use engine::defrag::file::{Format, Reader, Writer};
use engine::defrag::{Defragmenter, Options, copy};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // The first byte chooses, the rest is the file.
    let Some((choice, file)) = bytes.split_first() else { return };
    let Ok(mut reader) = Reader::open(file) else { return };
    let format = if choice & 1 == 0 { Format::Pcap } else { Format::Pcapng };
    let options = Options {
        tunnels: choice & 2 != 0,
        keep_incomplete: choice & 4 != 0,
        ..Options::default()
    };
    let mut defragmenter = Defragmenter::new(&options).expect("usual settings");
    let mut out = Vec::new();
    let Ok(mut writer) = Writer::like(&mut out, format, &reader) else { return };
    if let Ok(report) = copy(&mut reader, &mut writer, &mut defragmenter, &mut |_, _| Ok(())) {
        let mut again = Reader::open(&out[..]).expect("what we write begins as a capture");
        let mut packets = 0;
        while let Some(item) = again.advance().expect("what we write can be read") {
            packets += u64::from(matches!(item, engine::defrag::file::Item::Packet(_)));
        }
        assert_eq!(packets, report.written);
    }
});
