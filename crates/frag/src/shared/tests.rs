use testkit::fragments::{Family, Packet, Random, cases};

use super::*;
use crate::limits::Config;
use crate::output::{Datagram, Released};

#[derive(Default)]
struct Out {
    returned: usize,
    delivered: usize,
    whole: usize,
}

impl Sink<()> for Out {
    fn whole(&mut self, (): (), _: usize) {
        self.returned += 1;
        self.whole += 1;
    }

    fn datagram(&mut self, _: &Datagram<'_, ()>) {
        self.delivered += 1;
    }

    fn release(&mut self, (): (), _: Released) {
        self.returned += 1;
    }
}

fn table(memory_bytes: u64) -> Arc<Shared<()>> {
    let config = Config { memory_bytes, shards: 3, copy_below: 16, ..Config::default() };
    Shared::new(&config.limits().expect("right"), 16, &HashKey::new([1, 2]))
}

fn push(table: &Shared<()>, core: &mut Core, packet: &Packet, now: u64, out: &mut Out) {
    let bytes = packet.emit();
    let arrival = Arrival { cost: 2048, ..Arrival::new(&bytes, ()) };
    table.push(core, arrival, now, out);
}

/// Cores come and go in the middle of all datagrams, in little memory: it all comes back.
#[test]
fn leases_of_cores_that_come_and_go_add_up() {
    let table = table(256 << 10);
    let mut random = Random::new(7);
    let mut out = Out::default();
    let mut cores: Vec<Core> = (0..3).map(|_| table.core()).collect();
    let mut now = 1;
    let pushes = 20_000;
    for _ in 0..pushes {
        let id = u8::try_from(random.below(60)).expect("below 60");
        let whole = Packet::new(Family::V6, id.into(), vec![0; 120]);
        let at = 24 * random.below(5);
        let which = random.below(3);
        push(&table, &mut cores[which], &whole.fragment(at, at + 24), now, &mut out);
        now += random.below(100_000) as u64;
        if random.below(50) == 0 {
            cores[which] = table.core();
        }
    }
    assert!(out.delivered > 100, "{}", out.delivered);
    let end = now + 61_000_000_000;
    assert_eq!(table.expire(&mut cores[0], 0..16, end, &mut out), None);
    assert_eq!((table.datagrams(), out.returned), (0, pushes));
    drop(cores);
    assert_eq!(table.ledger.left(), table.ledger.limit());
    assert_eq!(table.ledger.promises_left(), table.ledger.promises_limit());
}

/// As a shard, in turn by two cores: at several times what fits.
#[test]
fn overload_leaves_a_shared_table_at_work() {
    let table = table(1 << 20);
    let mut cores = [table.core(), table.core()];
    let mut out = Out::default();
    let (senders, pieces) = (60u8, 45);
    let mut now = 1;
    for round in 0..20 * pieces {
        for sender in 0..senders {
            let at = round + usize::from(sender);
            let id = u32::try_from(at / pieces).expect("few");
            let mut whole = Packet::new(Family::V4, id, vec![0; pieces * 8]);
            whole.src = sender;
            let piece = at % pieces;
            let core = &mut cores[round % 2];
            push(&table, core, &whole.fragment(piece * 8, piece * 8 + 8), now, &mut out);
            now += 625;
        }
    }
    // Ten fit, of sixty; of 1200 that is 200 at best.
    assert!(out.delivered >= 50, "{} of 1200", out.delivered);
}

/// Each named case by two cores in turn, which then end: nothing is left, and the ledger has it all.
#[test]
fn named_cases_end_as_they_should_and_leave_nothing_behind() {
    for case in cases() {
        let limits = Config { shards: 2, fragments_max: 8192, ..Config::default() };
        let limits = limits.limits().expect("right");
        let table: Arc<Shared<()>> = Shared::new(&limits, 4, &HashKey::new([3, 4]));
        let mut out = Out::default();
        let mut cores = [table.core(), table.core()];
        for (at, fragment) in case.fragments.iter().enumerate() {
            push(&table, &mut cores[at % 2], fragment, 1, &mut out);
        }
        assert_eq!(out.delivered + out.whole, case.payloads.len(), "{}", case.name);
        let end = 61_000_000_000;
        assert_eq!(table.expire(&mut cores[0], 0..4, end, &mut out), None);
        assert_eq!((table.datagrams(), out.returned), (0, case.fragments.len()), "{}", case.name);
        drop(cores);
        let ledger = &table.ledger;
        assert_eq!(ledger.left(), ledger.limit(), "{}", case.name);
        assert_eq!(ledger.promises_left(), ledger.promises_limit(), "{}", case.name);
    }
}
