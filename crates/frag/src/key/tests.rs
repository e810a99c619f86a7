use std::collections::HashSet;

use super::*;

/// The keys of two fragments that CRC32C cannot tell apart from `key`, whatever it is seeded with: a
/// change of the source that the change of the identification takes back.
fn colliding(count: usize) -> Vec<Key> {
    let plain = |src: u32, id: u32| {
        let bytes = [src.to_le_bytes(), [198, 19, 0, 1], id.to_le_bytes()].concat();
        crc32c(0, &bytes)
    };
    let target = plain(0, 0);
    // The CRC is linear: for each identification there is one source.
    let columns: Vec<u32> = (0..32).map(|bit| plain(1 << bit, 0) ^ target).collect();
    let keys = (0u32..).map(|id| (solve(&columns, plain(0, id) ^ target), id));
    let keys = keys.map(|(src, id)| {
        assert_eq!(plain(src, id), target);
        Key::v6([u64::from(src), 0], [0, 1], id, 0)
    });
    keys.take(count).collect()
}

/// The combination of `columns` that is `want`, in the field of two elements.
fn solve(columns: &[u32], mut want: u32) -> u32 {
    let mut basis = [(0u32, 0u32); 32];
    for (bit, column) in columns.iter().enumerate() {
        let (mut vector, mut made_of) = (*column, 1u32 << bit);
        while vector != 0 {
            let top = vector.ilog2() as usize;
            if basis[top].0 == 0 {
                basis[top] = (vector, made_of);
                break;
            }
            vector ^= basis[top].0;
            made_of ^= basis[top].1;
        }
    }
    let mut result = 0;
    while want != 0 {
        let (vector, made_of) = basis[want.ilog2() as usize];
        want ^= vector;
        result ^= made_of;
    }
    result
}

fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0x82f6_3b78 }
        })
    })
}

#[test]
fn keys_that_collide_in_a_crc_do_not_here() {
    let key = HashKey::new([1, 2]);
    let all = colliding(65_536);
    let hashes: HashSet<u64> = all.iter().map(|k| key.hash(k)).collect();
    assert_eq!(hashes.len(), all.len());
    // And are spread over the slots of a table as chance has it: 65,536 over 1,024.
    let mut slots = [0u32; 1024];
    for hash in hashes {
        slots[(hash >> 32) as usize % 1024] += 1;
    }
    let most = slots.iter().max().copied().unwrap_or(0);
    assert!(most < 64 + 8 * 8, "{most} of 65536 in one of 1024");
}

#[test]
fn each_field_tells_keys_apart() {
    let key = HashKey::new([3, 4]);
    let v4 = Key::v4(0x0a00_0001, 0x0a00_0002, 7, 17, 0);
    let others = [
        Key::v4(0x0a00_0002, 0x0a00_0001, 7, 17, 0),
        Key::v4(0x0a00_0001, 0x0a00_0003, 7, 17, 0),
        Key::v4(0x0a00_0001, 0x0a00_0002, 8, 17, 0),
        Key::v4(0x0a00_0001, 0x0a00_0002, 7, 6, 0),
        Key::v4(0x0a00_0001, 0x0a00_0002, 7, 17, 1),
        Key::v6([0, 0x0a00_0001], [0, 0x0a00_0002], 7, 0),
        Key::v6([0, 0x0a00_0001], [0, 0x0a00_0002], 8, 0),
        Key::v6([1, 0x0a00_0001], [0, 0x0a00_0002], 7, 0),
        Key::v6([0, 0x0a00_0003], [0, 0x0a00_0002], 7, 0),
        Key::v6([0, 0x0a00_0001], [1, 0x0a00_0002], 7, 0),
        Key::v6([0, 0x0a00_0001], [0, 0x0a00_0003], 7, 0),
        Key::v6([0, 0x0a00_0001], [0, 0x0a00_0002], 7, 1),
    ];
    let mut seen: HashSet<u64> = HashSet::from([key.hash(&v4)]);
    for other in others {
        assert_ne!(other, v4);
        assert!(seen.insert(key.hash(&other)), "{other:?}");
    }
}

#[test]
fn the_same_secret_gives_the_same_hashes_and_another_other_ones() {
    let k = Key::v4(1, 2, 3, 4, 5);
    assert_eq!(HashKey::new([1, 2]).hash(&k), HashKey::new([1, 2]).hash(&k));
    let mut key = HashKey::new([1, 2]);
    let mut seen = HashSet::new();
    for _ in 0..1000 {
        assert!(seen.insert(key.hash(&k)) && seen.insert(key.hash_word(1)));
        key = key.successor();
    }
    assert!(seen.insert(HashKey::new([2, 1]).hash(&k)));
}

#[test]
fn one_bit_of_a_key_changes_half_of_the_hash() {
    let key = HashKey::new([8, 9]);
    let base = Key::v6([1, 2], [3, 4], 5, 6);
    let mut changed = 0;
    for bit in 0..64 {
        let other = Key { src: [base.src[0] ^ 1 << bit, base.src[1]], ..base };
        changed += (key.hash(&base) ^ key.hash(&other)).count_ones();
        changed += (key.hash_word(77) ^ key.hash_word(77 ^ 1 << bit)).count_ones();
    }
    assert!((28..=36).contains(&(changed / 128)), "{changed} of {}", 128 * 64);
}

#[test]
fn siphash_is_that_of_others() {
    // SipHash-1-3 with the key 0, by the standard library of Rust 1.95.
    assert_eq!(sip13([0, 0], 0), 0xbd60_acb6_58c7_9e45);
    assert_eq!(sip13([0, 0], 0x0706_0504_0302_0100), 0xead4_11e6_7ebe_2eea);
    assert_eq!(sip13([0, 0], u64::MAX), 0x2f20_5be2_fec8_e38d);
}

#[test]
fn a_source_is_its_network() {
    let of = |src| Key::v4(src, 1, 1, 1, 0).source_prefix();
    assert_eq!(of(0xc613_0001), of(0xc613_00ff));
    assert_ne!(of(0xc613_0001), of(0xc613_0101));
    let of = |src| Key::v6(src, [0, 0], 1, 0).source_prefix();
    assert_eq!(of([5, 1]), of([5, 2]));
    assert_ne!(of([5, 1]), of([6, 1]));
    assert!(Key::v6([0, 0], [0, 0], 0, 0).is_v6());
    assert!(!Key::v4(0, 0, u16::MAX, 255, u64::MAX).is_v6());
}
