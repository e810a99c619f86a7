//! Two link groups against each other: set-up, collisions, failures at any point.

#[path = "groups.rs"]
mod groups;

use proptest::prelude::*;

use groups::World;

fn steps(world: &mut World, n: u64) {
    for _ in 0..n {
        world.step();
    }
}

#[test]
fn connections_on_one_link_get_everything() {
    for shunt in [false, true] {
        let mut world = World::new(7, shunt, 1);
        steps(&mut world, 10);
        for _ in 0..5 {
            assert!(world.connect());
        }
        world.finish();
        assert!(world.all_got_everything());
    }
}

#[test]
fn a_group_without_connections_ends() {
    let mut world = World::new(7, false, 2);
    for _ in 0..1000 {
        if !world.step() {
            break;
        }
    }
    assert!(world.hosts.iter().all(|host| host.ended));
    let minutes = world.now / 60_000_000_000;
    assert_eq!(minutes, 10, "the server is first");
}

#[test]
fn a_second_link_is_added_and_carries_connections_when_the_first_fails() {
    for notice in 0..4 {
        let mut world = World::new(9 + notice, false, 2);
        steps(&mut world, 30);
        assert_eq!((world.hosts[0].active, world.hosts[1].active), (2, 2));
        for _ in 0..4 {
            assert!(world.connect());
        }
        steps(&mut world, 20);
        assert!(world.fail_link(notice));
        world.finish();
        assert!(world.all_got_everything(), "noticed by {notice}");
    }
}

#[test]
fn without_another_link_a_failure_ends_all() {
    let mut world = World::new(3, false, 1);
    steps(&mut world, 10);
    assert!(world.connect());
    world.fail_link(0);
    world.finish();
    assert!(world.hosts.iter().all(|host| host.ended));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn connections_survive_while_a_link_remains(
        seed in any::<u64>(),
        shunt in any::<bool>(),
        failures in prop::collection::vec((0..120u64, 0..4u64, any::<bool>()), 0..4),
    ) {
        let mut world = World::new(seed, shunt, 2);
        steps(&mut world, 30);
        for _ in 0..3 {
            world.connect();
        }
        for (wait, notice, heal) in failures {
            steps(&mut world, wait);
            // A link that is being added when the other one fails is none that remains.
            let used = world.hosts.iter().map(|host| host.active).min();
            if world.alive().len() < 2 || used < Some(2) {
                world.add_link();
                steps(&mut world, 60);
                continue;
            }
            world.fail_link(notice);
            if heal {
                steps(&mut world, 200);
                world.add_link();
            }
            world.connect();
        }
        world.finish();
        prop_assert!(world.all_got_everything());
    }

    #[test]
    fn whatever_fails_nobody_hangs(
        seed in any::<u64>(),
        shunt in any::<bool>(),
        links in 1..3u8,
        events in prop::collection::vec((0..80u64, 0..4u64, 0..4u8), 0..6),
    ) {
        let mut world = World::new(seed, shunt, links);
        for (wait, notice, what) in events {
            steps(&mut world, wait);
            match what {
                0 => {
                    world.fail_link(notice);
                }
                1 => world.add_link(),
                _ => {
                    world.connect();
                }
            }
        }
        world.finish();
    }
}
