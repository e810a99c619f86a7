use super::*;
use crate::random::Secret;

const PD: ProtectionDomain = ProtectionDomain(1);

fn regions(max: u32) -> Regions {
    Regions::new(max, Random::new(Secret::new([1, 2])))
}

fn region(address: u64, len: u64) -> Region {
    Region { domain: PD, address, len, access: Access::REMOTE_WRITE, handle: Handle(7) }
}

#[test]
fn only_bytes_within_the_region_are_found() {
    let mut regions = regions(4);
    let key = regions.register(region(1000, 100)).unwrap().0;
    let find = |address, len| regions.find(PD, key, Purpose::RemoteWrite, address, len);
    assert_eq!(find(1000, 100), Ok((Handle(7), 0)));
    assert_eq!(find(1099, 1), Ok((Handle(7), 99)));
    assert_eq!(find(1100, 0), Ok((Handle(7), 100)));
    for (address, len) in [(999, 1), (1000, 101), (1100, 1), (u64::MAX, 2), (0, u32::MAX)] {
        assert_eq!(find(address, len), Err(Denied), "{address} {len}");
    }
}

#[test]
fn key_domain_and_access_must_fit() {
    let mut regions = regions(4);
    let key = regions.register(Region { access: Access::READ, ..region(0, 8) }).unwrap().0;
    assert_eq!(regions.find(PD, key, Purpose::Read, 0, 8), Ok((Handle(7), 0)));
    assert_eq!(regions.find(PD, key, Purpose::LocalWrite, 0, 8), Err(Denied));
    assert_eq!(regions.find(PD, key, Purpose::RemoteWrite, 0, 8), Err(Denied));
    assert_eq!(regions.find(ProtectionDomain(2), key, Purpose::Read, 0, 8), Err(Denied));
    for bit in 0..32 {
        assert_eq!(regions.find(PD, key ^ 1 << bit, Purpose::Read, 0, 8), Err(Denied), "{bit}");
    }
}

#[test]
fn a_key_that_was_is_no_key() {
    let mut regions = regions(2);
    let first = regions.register(region(0, 8)).unwrap();
    let second = regions.reregister(first, region(0, 8)).unwrap();
    assert_ne!(second, first);
    assert_eq!(regions.find(PD, first.0, Purpose::Read, 0, 1), Err(Denied));
    assert!(regions.find(PD, second.0, Purpose::Read, 0, 1).is_ok());
    assert_eq!(regions.deregister(second).map(|r| r.handle), Ok(Handle(7)));
    assert_eq!(regions.deregister(second), Err(RegionError::Key));
    assert_eq!(regions.find(PD, second.0, Purpose::Read, 0, 1), Err(Denied));
    assert_eq!(regions.reregister(second, region(0, 8)), Err(RegionError::Key));
    assert_eq!(regions.len(), 0);
}

#[test]
fn a_key_leads_elsewhere_and_stays() {
    let mut regions = regions(2);
    let key = regions.register(region(0x4000, 64)).unwrap();
    assert_eq!(regions.written_by(key.0, 5), None);
    assert_eq!(regions.written_by(key.0, 6), Some(5));
    regions.rebind(key, Handle(9)).unwrap();
    let found = |regions: &Regions, domain, at, len| {
        regions.find(domain, key.0, Purpose::RemoteWrite, at, len)
    };
    assert_eq!(found(&regions, PD, 0x4001, 63), Ok((Handle(9), 1)));
    assert_eq!(found(&regions, PD, 0x4001, 64), Err(Denied));
    assert_eq!(found(&regions, ProtectionDomain(2), 0x4001, 1), Err(Denied));
    // Nobody has written to what is there now.
    assert_eq!(regions.written_by(key.0, 7), None);
    regions.deregister(key).unwrap();
    assert_eq!(regions.rebind(key, Handle(1)), Err(RegionError::Key));
}

#[test]
fn there_is_a_limit_and_a_slot_is_used_again() {
    for max in [1, 2, 3, 64] {
        let mut regions = regions(max);
        let keys: Vec<_> = (0..max).map(|_| regions.register(region(0, 8)).unwrap()).collect();
        assert_eq!(regions.register(region(0, 8)), Err(RegionError::Full));
        regions.deregister(keys[0]).unwrap();
        let again = regions.register(region(0, 8)).unwrap();
        assert_ne!(again, keys[0]);
        let unlike = keys.iter().enumerate().all(|(n, k)| !keys[n + 1..].contains(k));
        assert!(unlike && !keys.contains(&again));
    }
}

#[test]
fn keys_cannot_be_guessed() {
    // As the engine has them: 16 bits are left to chance, 8 at each end.
    let mut regions = regions(1 << 16);
    let keys: Vec<u32> = (0..200)
        .map(|_| {
            let key = regions.register(region(0, 8)).unwrap();
            regions.deregister(key).unwrap();
            key.0
        })
        .collect();
    let of = |part: fn(u32) -> u32| {
        keys.iter().map(|key| part(*key)).collect::<std::collections::BTreeSet<u32>>().len()
    };
    assert!(of(|key| key) > 195, "{keys:x?}");
    // Each end by itself has 256 values: 139 of them are to be expected.
    let (low, high) = (of(|key| key & 0xff), of(|key| key >> 24));
    assert!(low > 110 && high > 110, "{low} {high}");
    // Who has seen some does not know the next one by the step from one to another.
    let steps: std::collections::BTreeSet<u32> =
        keys.windows(2).map(|two| two[1].wrapping_sub(two[0]) & 0xff).collect();
    assert!(steps.len() > 100, "{}", steps.len());
}

#[test]
fn a_region_has_bytes_and_an_end() {
    let mut regions = regions(2);
    assert_eq!(regions.register(region(0, 0)), Err(RegionError::Range));
    assert_eq!(regions.register(region(u64::MAX, 1)), Err(RegionError::Range));
    assert!(regions.register(region(u64::MAX - 1, 1)).is_ok());
}
