//! A guest that is a value: rings in plain memory, a program that is a test.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sys::event::Bell;

use super::guest::{Broken, Program, Relay, Sleeper};

/// A vector that rings are rung for always.
#[derive(Debug)]
pub(super) struct Awake;

impl Sleeper for Awake {
    fn fall_asleep(&self) {}
    fn awake(&self) {}
}

#[derive(Debug)]
struct State {
    /// What the program has sent and is not released.
    sent: VecDeque<u8>,
    released: u64,
    program: Program,
    /// It reads all that is there and closes, between two looks of the engine.
    leaves: bool,
    rmb: Vec<u8>,
    published: u64,
    read: u64,
    /// The peer sends no more.
    shut: bool,
    /// How the engine parted.
    closed: Option<bool>,
}

/// The engine's side.
#[derive(Debug)]
pub(super) struct FakeRelay {
    state: Arc<Mutex<State>>,
    bell: Arc<Bell>,
}

/// The program's side.
#[derive(Debug)]
pub(super) struct Guest {
    state: Arc<Mutex<State>>,
    bell: Arc<Bell>,
}

/// What a program cannot wait for any longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection of a guest: what the engine gets, and what the program has.
pub(super) fn guest(rmb_bytes: usize) -> (FakeRelay, Guest) {
    let state = Arc::new(Mutex::new(State {
        sent: VecDeque::new(),
        released: 0,
        program: Program::Open,
        leaves: false,
        rmb: vec![0; rmb_bytes],
        published: 0,
        read: 0,
        shut: false,
        closed: None,
    }));
    let bell = Arc::new(Bell::new().unwrap());
    let relay = FakeRelay { state: Arc::clone(&state), bell: Arc::clone(&bell) };
    (relay, Guest { state, bell })
}

impl Guest {
    pub(super) fn send(&self, bytes: &[u8]) {
        self.state.lock().unwrap().sent.extend(bytes);
        self.bell.ring();
    }

    /// What is there to read, if anything.
    pub(super) fn receive(&self, most: usize) -> Vec<u8> {
        let mut state = self.state.lock().unwrap();
        let size = state.rmb.len();
        let n = usize::try_from(state.published - state.read).unwrap().min(most);
        let start = usize::try_from(state.read).unwrap();
        let bytes = (start..start + n).map(|at| state.rmb[at % size]).collect();
        state.read += n as u64;
        drop(state);
        self.bell.ring();
        bytes
    }

    /// Reads exactly so many bytes.
    #[track_caller]
    pub(super) fn receive_all(&self, n: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.wait(&format!("{n} bytes"), |guest| {
            bytes.extend(guest.receive(n - bytes.len()));
            bytes.len() == n
        });
        bytes
    }

    pub(super) fn ends(&self, program: Program) {
        self.state.lock().unwrap().program = program;
        self.bell.ring();
    }

    /// The program reads all that there is and closes at the moment at which the engine looks what it has done.
    pub(super) fn leaves(&self) {
        self.state.lock().unwrap().leaves = true;
        self.bell.ring();
    }

    pub(super) fn peer_shut(&self) -> bool {
        self.state.lock().unwrap().shut
    }

    /// How the engine has parted: `true` by a reset.
    pub(super) fn closed(&self) -> Option<bool> {
        self.state.lock().unwrap().closed
    }

    /// Bytes that have arrived and were not read.
    pub(super) fn unread(&self) -> u64 {
        let state = self.state.lock().unwrap();
        state.published - state.read
    }

    /// Bytes that are not known to have arrived.
    pub(super) fn unreleased(&self) -> usize {
        self.state.lock().unwrap().sent.len()
    }

    #[track_caller]
    pub(super) fn wait(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < PATIENCE, "waited in vain for {what}: {:?}", self.summary());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn summary(&self) -> String {
        let s = self.state.lock().unwrap();
        format!(
            "unreleased {}, released {}, published {}, read {}, shut {}, closed {:?}",
            s.sent.len(),
            s.released,
            s.published,
            s.read,
            s.shut,
            s.closed
        )
    }
}

impl Relay for FakeRelay {
    fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
    fn heard(&mut self, _: bool, _: bool) {
        let _ = self.bell.hear();
    }
    fn written(&mut self) -> Result<u64, Broken> {
        let state = self.state.lock().unwrap();
        Ok(state.released + state.sent.len() as u64)
    }
    fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Broken> {
        let state = self.state.lock().unwrap();
        let skip = at.checked_sub(state.released).ok_or(Broken)?;
        let skip = usize::try_from(skip).map_err(|_| Broken)?;
        if skip + to.len() > state.sent.len() {
            return Err(Broken);
        }
        for (to, from) in to.iter_mut().zip(state.sent.range(skip..)) {
            *to = *from;
        }
        Ok(())
    }
    fn release(&mut self, upto: u64) {
        let mut state = self.state.lock().unwrap();
        let n = usize::try_from(upto.saturating_sub(state.released)).unwrap();
        state.sent.drain(..n);
        state.released += n as u64;
    }
    fn program(&self) -> Program {
        let mut state = self.state.lock().unwrap();
        if state.leaves {
            (state.read, state.program) = (state.published, Program::Closed);
        }
        state.program
    }
    fn rmb_bytes(&self) -> usize {
        self.state.lock().unwrap().rmb.len()
    }
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let mut state = self.state.lock().unwrap();
        let Some(to) = state.rmb.get_mut(offset..offset + bytes.len()) else { return false };
        to.copy_from_slice(bytes);
        true
    }
    fn publish(&mut self, upto: u64) {
        self.state.lock().unwrap().published = upto;
    }
    fn pour(&mut self) -> bool {
        true
    }
    fn consumed(&self) -> Result<u64, Broken> {
        Ok(self.state.lock().unwrap().read)
    }
    fn want_consumed(&mut self, _: bool) {}
    fn shut(&mut self) {
        self.state.lock().unwrap().shut = true;
    }
    fn close(self: Box<Self>, reset: bool) {
        self.state.lock().unwrap().closed = Some(reset);
    }
}
