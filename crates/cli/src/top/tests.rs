use ratatui::backend::TestBackend;

use super::*;
use crate::snapshot::tests::Fixture;

fn screen(snapshots: Vec<Snapshot>) -> Screen {
    let mut screen = Screen::new("/x/board".into(), stat::Filter::default());
    for snapshot in snapshots {
        screen.handle_snapshot(Some(snapshot), 2.0);
    }
    screen
}

fn drawn(screen: &mut Screen) -> String {
    let mut terminal = ratatui::Terminal::new(TestBackend::new(200, 12)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

fn press(screen: &mut Screen, key: char) {
    screen.handle_key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
}

/// The same board a little later: the offered connection has moved most.
fn later(mut snapshot: Snapshot) -> Snapshot {
    for c in &mut snapshot.connections {
        c.counters.bytes_tx += if c.peer_half.is_none() && c.slot == 1 { 8 << 20 } else { 2048 };
        c.counters.doorbells += if c.slot == 0 { 40 } else { 0 };
    }
    for p in &mut snapshot.processes {
        p.counters.bytes_tx += 4096;
    }
    snapshot
}

#[test]
fn rates_are_what_was_counted_in_a_second() {
    let first = Fixture::busy().snapshot();
    let screen = screen(vec![first.clone(), later(first)]);
    let entries = screen.entries();
    assert_eq!(entries.len(), 4);
    assert_eq!(entries[0].rate.bytes_tx, 4 << 20, "the busiest first");
    assert_eq!(entries[1].rate.bytes_tx, 1024);
}

#[test]
fn what_has_just_appeared_has_no_rate_yet() {
    let first = Fixture::busy().snapshot();
    let screen = screen(vec![first]);
    assert!(screen.entries().iter().all(|e| e.rate == Counters::default()));
}

#[test]
fn another_connection_in_the_same_place_is_another_line() {
    let first = Fixture::busy().snapshot();
    let mut second = later(first.clone());
    for c in &mut second.connections {
        c.generation += 1;
        c.counters.bytes_tx = 3000;
        c.counters.bytes_rx = 0;
    }
    // It began after the last look, so all that it has moved it has moved since.
    let screen = screen(vec![first, second]);
    let rates: Vec<_> = screen.entries().iter().map(|e| e.rate.bytes_tx).collect();
    assert_eq!(rates, [1500; 4]);
}

#[test]
fn a_narrow_terminal_has_the_columns_that_matter_whole() {
    let first = Fixture::busy().snapshot();
    let mut screen = screen(vec![first.clone(), later(first)]);
    let mut widths = Vec::new();
    for width in [200, 120, 80] {
        let mut terminal = ratatui::Terminal::new(TestBackend::new(width, 12)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        for heading in ["Program", "Local Address", "Peer Address", "Tx/s", "Rx/s"] {
            assert!(text.contains(heading), "{text}");
        }
        widths.push(text.matches("/s ").count());
        for entry in screen.entries() {
            assert!(text.contains(&entry.names[1]) && text.contains(&entry.names[0]), "{text}");
        }
    }
    assert!(widths[0] > widths[2], "{widths:?}");
}

#[test]
fn counters_that_run_backwards_are_zero_and_not_enormous() {
    let first = Fixture::busy().snapshot();
    let screen = screen(vec![later(first.clone()), first]);
    assert!(screen.entries().iter().all(|e| e.rate.bytes_tx == 0));
}

#[test]
fn keys_sort_and_change_what_is_shown_and_quit() {
    let first = Fixture::busy().snapshot();
    let mut screen = screen(vec![first.clone(), later(first)]);
    press(&mut screen, 's');
    assert_eq!(screen.order, Order::Bells);
    assert_eq!(screen.entries()[0].rate.doorbells, 20);
    for _ in 0..5 {
        press(&mut screen, 's');
    }
    assert_eq!(screen.order, Order::Bytes, "all the way round");
    let text = drawn(&mut screen);
    assert!(text.contains("Local Address") && text.contains("TCP 26 (offe"), "{text}");
    press(&mut screen, 'p');
    let text = drawn(&mut screen);
    assert!(text.contains("Memory") && text.contains("/server") && text.contains("2K"), "{text}");
    assert!(!text.contains("gone"), "{text}");
    assert!(!screen.done);
    press(&mut screen, 'q');
    assert!(screen.done);
}

#[test]
fn control_c_quits_and_c_does_not() {
    let mut screen = screen(Vec::new());
    press(&mut screen, 'c');
    assert!(!screen.done);
    screen.handle_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(screen.done);
}

#[test]
fn a_board_that_has_gone_is_told_and_small_terminals_are_no_matter() {
    let mut screen = screen(vec![Fixture::busy().snapshot()]);
    screen.handle_key(KeyEvent::new(KeyCode::PageDown, KeyModifiers::NONE));
    let _ = drawn(&mut screen);
    assert_eq!(screen.scroll, 0, "everything is in view");
    screen.handle_snapshot(None, 1.0);
    assert!(drawn(&mut screen).contains("no board at /x/board"));
    for (width, height) in [(1, 1), (3, 2), (10, 3)] {
        let mut terminal = ratatui::Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
    }
}

#[test]
fn the_headline_says_that_it_is_switched_off() {
    let mut screen = screen(vec![Fixture::busy().snapshot()]);
    assert!(!drawn(&mut screen).contains("OFF"));
    screen.is_off = true;
    assert!(drawn(&mut screen).contains("shunt top: SWITCHED OFF (shunt on): "));
}
