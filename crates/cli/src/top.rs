//! `shunt top`: rates per second, live in the terminal.
//!
//! [`Screen`] is what the keys and the board make of it, and knows no terminal; [`run`] puts it on
//! one.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

use crate::snapshot::{Connection, Counters, Process, Snapshot, Watch};
use crate::stat;
use crate::table::{bytes, count, socket};

/// How long a key or a signal may wait for us.
const PATIENCE: Duration = Duration::from_millis(200);

/// What lines are sorted by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Bytes,
    Bells,
    Sleeps,
    Stalls,
    Total,
    Name,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Bells,
            Self::Bells => Self::Sleeps,
            Self::Sleeps => Self::Stalls,
            Self::Stalls => Self::Total,
            Self::Total => Self::Name,
            Self::Name => Self::Bytes,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Bytes => "bytes/s",
            Self::Bells => "bells/s",
            Self::Sleeps => "sleeps/s",
            Self::Stalls => "stalls/s",
            Self::Total => "bytes in all",
            Self::Name => "program",
        }
    }
}

/// What a line stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Connections,
    Processes,
}

/// A line: names on the left, rates on the right.
#[derive(Clone, Debug)]
struct Entry {
    names: Vec<String>,
    program: String,
    rate: Counters,
    total: u64,
}

impl Entry {
    fn compare(&self, other: &Self, order: Order) -> Ordering {
        let key = |e: &Self| match order {
            Order::Bytes => e.rate.bytes_tx.saturating_add(e.rate.bytes_rx),
            Order::Bells => e.rate.doorbells,
            Order::Sleeps => e.rate.sleeps,
            Order::Stalls => e.rate.stalls,
            Order::Total => e.total,
            Order::Name => 0,
        };
        // Equals in a fixed order, so that lines do not dance.
        let by_name = || (&self.program, &self.names).cmp(&(&other.program, &other.names));
        key(other).cmp(&key(self)).then_with(by_name)
    }

    fn cells(&self) -> Vec<String> {
        let r = &self.rate;
        let rates = [
            bytes(r.bytes_tx),
            bytes(r.bytes_rx),
            count(r.doorbells),
            count(r.sleeps),
            count(r.spins),
            count(r.stalls),
            bytes(self.total),
        ];
        self.names.iter().cloned().chain(rates).collect()
    }
}

const RATES: [(&str, Worth); 7] = [
    ("Tx/s", Worth::Most),
    ("Rx/s", Worth::Most),
    ("Bells/s", Worth::Some),
    ("Sleeps/s", Worth::Less),
    ("Spins/s", Worth::Less),
    ("Stalls/s", Worth::Some),
    ("Total", Worth::Much),
];

/// The same counters for each second.
fn per_second(counted: Counters, seconds: f64) -> Counters {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    #[expect(clippy::cast_sign_loss, reason = "of a positive number")]
    let rate = |n: u64| (n as f64 / seconds).round() as u64;
    Counters {
        bytes_tx: rate(counted.bytes_tx),
        bytes_rx: rate(counted.bytes_rx),
        doorbells: rate(counted.doorbells),
        sleeps: rate(counted.sleeps),
        spins: rate(counted.spins),
        stalls: rate(counted.stalls),
        sends: rate(counted.sends),
        receives: rate(counted.receives),
    }
}

/// What was counted since the last look, for each second. All that one has counted which was not there then, was counted
/// since. `before`: `None` if there was no look.
fn rate<K: Eq + Hash>(
    before: Option<&HashMap<K, Counters>>,
    key: &K,
    now: Counters,
    seconds: f64,
) -> Counters {
    match before {
        Some(before) if seconds > 0.0 => {
            per_second(now.since(&before.get(key).copied().unwrap_or_default()), seconds)
        }
        _ => Counters::default(),
    }
}

/// Which of the columns are shown where there is room for so many characters: those that matter most, in their order.
fn fitting(columns: &[(Worth, usize)], room: usize) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let wide = |shown: &[usize]| shown.iter().map(|at| columns[*at].1 + 1).sum::<usize>();
    while wide(&shown) > room + 1 {
        let least = shown.iter().copied().enumerate().max_by_key(|(_, at)| (columns[*at].0, *at));
        match least {
            Some((place, at)) if columns[at].0 > Worth::Most => shown.remove(place),
            // As far as it goes.
            _ => break,
        };
    }
    shown
}

/// What it is worth to see a column; what is worth less goes where the terminal is narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Most,
    Much,
    Some,
    Less,
}

fn connection_key(c: &Connection) -> (u32, u32) {
    (c.half, c.generation)
}

fn process_key(p: &Process) -> (u32, u32, u64) {
    (p.slot, p.pid, p.since)
}

/// What the terminal shows.
#[derive(Debug)]
struct Screen {
    subject: Subject,
    order: Order,
    scroll: usize,
    done: bool,
    /// Others are to have the terminal until we go on.
    rests: bool,
    board: String,
    /// Which lines are shown. Rates are of all, so that one that comes to be shown has not done everything since the last look.
    filter: stat::Filter,
    /// New connections stay on TCP.
    is_off: bool,
    now: Option<Snapshot>,
    before: Option<Snapshot>,
    seconds: f64,
}

impl Screen {
    const fn new(board: String, filter: stat::Filter) -> Self {
        Self {
            subject: Subject::Connections,
            order: Order::Bytes,
            scroll: 0,
            done: false,
            rests: false,
            board,
            filter,
            is_off: false,
            now: None,
            before: None,
            seconds: 0.0,
        }
    }

    /// Takes what the board says now, `seconds` after the last time.
    fn handle_snapshot(&mut self, snapshot: Option<Snapshot>, seconds: f64) {
        self.before = self.now.take();
        self.seconds = seconds;
        self.now = snapshot.map(|mut s| {
            s.connections.retain(Connection::is_current);
            s.processes.retain(|p| p.alive);
            s
        });
    }

    fn handle_key(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.done = true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => self.done = true,
            // What the terminal makes signals of at other times.
            KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.rests = true
            }
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('p') => {
                self.scroll = 0;
                self.subject = match self.subject {
                    Subject::Connections => Subject::Processes,
                    Subject::Processes => Subject::Connections,
                };
            }
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(20),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(20),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let Some(now) = &self.now else { return Vec::new() };
        let mut entries = match self.subject {
            Subject::Connections => self.connections(now),
            Subject::Processes => self.processes(now),
        };
        entries.sort_by(|a, b| a.compare(b, self.order));
        entries
    }

    fn connections(&self, now: &Snapshot) -> Vec<Entry> {
        let keyed = |s: &Snapshot| -> HashMap<_, _> {
            s.connections.iter().map(|c| (connection_key(c), c.counters)).collect()
        };
        let before = self.before.as_ref().map(keyed);
        let entry = |c: &Connection| Entry {
            names: vec![
                stat::process_name(c.pid, c.host_pid, &c.program),
                socket(c.local_address, c.local_port),
                socket(c.peer_address, c.peer_port),
                stat::peer_name(c),
                stat::mode(c),
            ],
            program: c.program.clone(),
            rate: rate(before.as_ref(), &connection_key(c), c.counters, self.seconds),
            total: c.counters.bytes_tx.saturating_add(c.counters.bytes_rx),
        };
        now.connections.iter().filter(|c| self.filter.takes(c)).map(entry).collect()
    }

    fn processes(&self, now: &Snapshot) -> Vec<Entry> {
        let keyed = |s: &Snapshot| -> HashMap<_, _> {
            s.processes.iter().map(|p| (process_key(p), p.counters)).collect()
        };
        let before = self.before.as_ref().map(keyed);
        let entry = |p: &Process| Entry {
            names: vec![
                stat::process_name(p.pid, p.host_pid, &p.program),
                p.connections_shm.to_string(),
                p.connections_tcp.to_string(),
                bytes(p.memory_owned_bytes),
            ],
            program: p.program.clone(),
            rate: rate(before.as_ref(), &process_key(p), p.counters, self.seconds),
            total: p.counters.bytes_tx.saturating_add(p.counters.bytes_rx),
        };
        let is_shown = |p: &&Process| self.filter.takes_process(p, &now.connections);
        now.processes.iter().filter(is_shown).map(entry).collect()
    }

    /// Headings of the names, and what their columns are worth.
    const fn names(&self) -> &'static [(&'static str, Worth)] {
        match self.subject {
            Subject::Connections => &[
                ("Program", Worth::Most),
                ("Local Address", Worth::Most),
                ("Peer Address", Worth::Most),
                ("Peer Program", Worth::Some),
                ("Mode", Worth::Much),
            ],
            Subject::Processes => &[
                ("Program", Worth::Most),
                ("SHM", Worth::Most),
                ("TCP", Worth::Most),
                ("Memory", Worth::Most),
            ],
        }
    }

    fn headline(&self) -> String {
        let switch = if self.is_off { "SWITCHED OFF (shunt on): " } else { "" };
        match &self.now {
            Some(all) if self.filter.is_empty() => {
                format!("shunt top: {switch}{}", stat::summary(all))
            }
            Some(all) => {
                let mut shown = all.clone();
                self.filter.apply(&mut shown);
                format!("shunt top: {switch}{}", stat::summary(&shown))
            }
            None => format!(
                "shunt top: {switch}no board at {}: no program runs under shunt here",
                self.board
            ),
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        let entries = self.entries();
        let room = usize::from(body.height).saturating_sub(1);
        self.scroll = self.scroll.min(entries.len().saturating_sub(room));
        let visible = entries.iter().skip(self.scroll).take(room);
        let rows: Vec<Vec<String>> = visible.map(Entry::cells).collect();
        let headings: Vec<_> = self.names().iter().copied().chain(RATES).collect();
        let width = |(at, (heading, worth)): (usize, &(&str, Worth))| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            (*worth, cells.chain([heading.len()]).max().unwrap_or(0))
        };
        let columns: Vec<_> = headings.iter().enumerate().map(width).collect();
        let shown = fitting(&columns, body.width.into());
        let rows = rows.iter().map(|row| Row::new(shown.iter().map(|at| row[*at].as_str())));
        let widths =
            shown.iter().map(|at| Constraint::Length(columns[*at].1.try_into().unwrap_or(0)));
        let names = shown.iter().map(|at| Cell::from(headings[*at].0));
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let table = Table::new(rows, widths).header(Row::new(names).style(reversed));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(Line::styled(self.headline(), bold)), head);
        frame.render_widget(table, body);
        let other = match self.subject {
            Subject::Connections => "processes",
            Subject::Processes => "connections",
        };
        let keys =
            format!("q quit   s sort (by {})   p {other}   arrows scroll", self.order.words());
        frame.render_widget(Paragraph::new(keys), foot);
    }
}

/// Gives the terminal back, whichever way we leave; after a panic a hook has done it already.
struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    fn take() -> anyhow::Result<Self> {
        ratatui::try_init().map(Self).context("the terminal cannot be used")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

const STDIN: i32 = 0;

/// Shows the board until somebody has seen enough.
pub(crate) fn run(
    dir: Option<&str>,
    interval: Duration,
    filter: stat::Filter,
) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top needs a terminal; use `shunt stat --watch`");
    }
    if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        bail!("this terminal (TERM) can only print lines; use `shunt stat --watch`");
    }
    let mut watch = Watch::new(dir)?;
    let mut screen = Screen::new(watch.path(), filter);
    screen.is_off = local::board::is_off(dir);
    screen.handle_snapshot(watch.look()?, 0.0);
    let stop = Arc::new(AtomicBool::new(false));
    let rests = Arc::new(AtomicBool::new(false));
    for (signal, flag) in
        [(SIGTERM, &stop), (SIGINT, &stop), (SIGHUP, &stop), (SIGQUIT, &stop), (SIGTSTP, &rests)]
    {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("signal handler")?;
    }
    let mut terminal = Terminal::take()?;
    let mut last = Instant::now();
    while !screen.done && !stop.load(atomic::Ordering::Relaxed) {
        if rests.swap(false, atomic::Ordering::Relaxed) {
            // Others have the terminal meanwhile, as they know it.
            drop(terminal);
            signal_hook::low_level::emulate_default_handler(SIGTSTP).context("cannot stop")?;
            terminal = Terminal::take()?;
        }
        terminal.0.draw(|frame| screen.draw(frame))?;
        let left = interval.saturating_sub(last.elapsed()).min(PATIENCE);
        // Not by `event::poll`: where the terminal has gone, it would look for ever.
        sys::call::wait_readable(STDIN, i32::try_from(left.as_millis()).unwrap_or(0).max(1));
        if sys::call::hung_up(STDIN) {
            break;
        }
        if event::poll(Duration::ZERO).context("keyboard")?
            && let Event::Key(key) = event::read().context("keyboard")?
        {
            screen.handle_key(key);
            rests.fetch_or(std::mem::take(&mut screen.rests), atomic::Ordering::Relaxed);
        }
        if last.elapsed() >= interval {
            let seconds = last.elapsed().as_secs_f64();
            last = Instant::now();
            screen.is_off = local::board::is_off(dir);
            screen.handle_snapshot(watch.look()?, seconds);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
