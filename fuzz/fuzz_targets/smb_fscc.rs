//! What clients set: information, attributes, reparse points, and the bodies of control codes.
#![no_main]

use smb::fscc::reparse::{Reparse, parse_delete};
use smb::fscc::{Fill, QuotaQuery, SetClass, eas_len, fsctl, parse_ea_names, parse_eas, put_eas};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((class, body)) = bytes.split_first() else { return };
    if let Ok(class) = SetClass::from_wire(*class) {
        let _ = class.parse(body);
    }
    if let Ok(eas) = parse_eas(body) {
        let mut out = Vec::new();
        assert_eq!(put_eas(&eas, usize::MAX, &mut out), Ok(Fill::Whole));
        assert_eq!((parse_eas(&out), out.len()), (Ok(eas.clone()), eas_len(&eas)));
    }
    let _ = (parse_ea_names(body), QuotaQuery::parse(body), parse_delete(body));
    if let Ok(point) = Reparse::parse(body) {
        if let Reparse::Symlink(link) = &point {
            let _ = (link.to_unix(), link.to_error(0));
        }
        assert_eq!(Reparse::parse(&point.to_bytes()), Ok(point));
    }
    if let Ok(copy) = fsctl::CopyChunk::parse(body) {
        let total: u64 = copy.chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        assert!(total <= fsctl::COPY_LEN_MAX.into());
    }
    for ex in [false, true] {
        if let Ok(duplicate) = fsctl::Duplicate::parse(body, ex) {
            assert!(i64::try_from(duplicate.from + duplicate.len).is_ok());
        }
    }
    for range in [fsctl::parse_zero(body), fsctl::parse_allocated(body)].into_iter().flatten() {
        assert!(i64::try_from(range.offset + range.len).is_ok());
    }
    let _ = (fsctl::RegionQuery::parse(body), fsctl::ValidateNegotiate::parse(body));
    let _ = (fsctl::Integrity::parse(body), fsctl::PipeWait::parse(body));
    let _ = (fsctl::parse_compression(body), fsctl::parse_sparse(body));
});
