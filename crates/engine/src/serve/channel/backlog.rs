//! Memory of answers that clients have not taken, and of large requests for which the loop has no buffer: how much there
//! is of it, and who may have more.
//!
//! A connection has a part of what is left, and so have all connections of one address together: who takes nothing on
//! many connections leaves as much to others as who takes nothing on one. What an address has is in one of two
//! accounts. The *usual* one is for whoever has less than its part. When an address has had its part, each of its
//! connections that has nothing may have one answer more as long as the *extra* account allows it: who takes
//! its answers goes on, beside others of the same address who take none. Then they wait.
//!
//! Nothing is reserved: what is asked and what is counted are two steps. So each loop may go one answer beyond.
//!
//! Descriptors of what is open are counted in the same way, by one each, and so is what is kept of changes for those who
//! watch a folder, which has no extra account: who may not keep any more need not wait.
//!
//! A request is counted with its address, and not with what its own connection has: it may be one that waits for
//! another that is still to come on the same connection.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smb::auth::network;

use super::super::runtime::Event;

/// What all connections of one address may have: so many times what is left. By itself one has four fifths.
const OF_AN_ADDRESS: usize = 4;
/// What one connection may have: what is left, divided by this.
const OF_A_CONNECTION: usize = 2;
/// How much there is beyond the limit, for who has nothing: the limit, divided by this.
const EXTRA: usize = 2;

/// Bytes in both accounts.
#[derive(Debug, Default)]
struct Sums {
    usual: AtomicUsize,
    extra: AtomicUsize,
}

impl Sums {
    fn of(&self, extra: bool) -> &AtomicUsize {
        if extra { &self.extra } else { &self.usual }
    }

    fn add(&self, extra: bool, bytes: usize) {
        self.of(extra).fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self, extra: bool, bytes: usize) {
        self.of(extra).fetch_sub(bytes, Ordering::Relaxed);
    }

    fn read(&self, extra: bool) -> usize {
        self.of(extra).load(Ordering::Relaxed)
    }
}

/// The addresses that connections are from.
#[derive(Debug, Default)]
struct Addresses {
    known: HashMap<IpAddr, Weak<Sums>>,
    /// With more than so many, those that are gone are looked for.
    most: usize,
}

/// Bytes of frames in memory that wait on all connections of a server, by the addresses of clients.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct Backlog {
    all: Arc<Sums>,
    addresses: Arc<Mutex<Addresses>>,
}

impl Backlog {
    /// How many there are.
    pub(in crate::serve) fn bytes(&self) -> usize {
        self.all.read(false) + self.all.read(true)
    }

    /// The account of a connection from this address.
    pub(super) fn account(&self, peer: IpAddr) -> Account {
        let peer = network(peer);
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.known.len() > addresses.most {
            addresses.known.retain(|_, sums| sums.strong_count() > 0);
            addresses.most = 2 * addresses.known.len() + 64;
        }
        let known = addresses.known.entry(peer).or_default();
        let address = known.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *known = Arc::downgrade(&new);
            new
        });
        let parties = Parties { all: self.all.clone(), address, making: Arc::default() };
        Account { parties, told: Cell::new(0), extra: Cell::new(false) }
    }

    /// Nothing yet, for a client at this address.
    pub(in crate::serve) fn nothing(&self, peer: IpAddr) -> Taken {
        let parties = self.account(peer).parties.clone();
        Taken { parties, extra: false, amount: 0 }
    }
}

/// Who counts the bytes of a connection.
#[derive(Clone, Debug)]
struct Parties {
    all: Arc<Sums>,
    address: Arc<Sums>,
    making: Arc<Made>,
}

/// Answers of one connection that are being made, on whatever thread.
#[derive(Debug, Default)]
struct Made {
    bytes: AtomicUsize,
    /// Somebody waits until there are fewer.
    awaited: AtomicBool,
    /// There are.
    fewer: Event,
}

impl Parties {
    fn add(&self, extra: bool, bytes: usize) {
        self.all.add(extra, bytes);
        self.address.add(extra, bytes);
    }

    fn take(&self, extra: bool, bytes: usize) {
        self.all.take(extra, bytes);
        self.address.take(extra, bytes);
    }

    /// Whether the usual account has room for so much, of `most` that there is for all.
    fn has_room(&self, amount: usize, most: usize) -> bool {
        let free = most.saturating_sub(self.all.read(false));
        amount <= free && self.address.read(false) <= OF_AN_ADDRESS.saturating_mul(free)
    }
}

/// Memory of an answer that is being made, on one connection: counted until it is handed to the connection's output.
#[derive(Debug)]
pub(in crate::serve) struct Making {
    parties: Parties,
    extra: bool,
    bytes: usize,
}

impl Drop for Making {
    fn drop(&mut self) {
        self.parties.take(self.extra, self.bytes);
        let made = &self.parties.making;
        // Of these two and those of who begins to wait one comes first (SeqCst): he sees fewer bytes, or we see him. An
        // answer that comes to nothing is told by nobody else.
        made.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if made.awaited.load(Ordering::SeqCst) {
            made.fewer.notify_all();
        }
    }
}

/// A part of what there is for all, counted as long as this is there.
#[derive(Debug)]
pub(in crate::serve) struct Taken {
    parties: Parties,
    extra: bool,
    amount: usize,
}

impl Taken {
    /// Takes so much more of the usual account, of `most` that there is for all. `false`: its address has its part.
    pub(in crate::serve) fn more(&mut self, amount: usize, most: usize) -> bool {
        let has_room = self.parties.has_room(amount, most);
        if has_room {
            self.parties.add(self.extra, amount);
            self.amount += amount;
        }
        has_room
    }

    /// Gives back what is beyond so much.
    pub(in crate::serve) fn keep(&mut self, amount: usize) {
        let more = self.amount.saturating_sub(amount);
        self.amount -= more;
        self.parties.take(self.extra, more);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.parties.take(self.extra, self.amount);
    }
}

/// A request in memory.
#[derive(Debug)]
pub(super) struct Large {
    bytes: Vec<u8>,
    _taken: Taken,
}

impl Deref for Large {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Large {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Why a connection is not read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooMuch {
    /// Until no more than so many bytes wait for its client, and are being made.
    Here(usize),
    /// Nothing waits for it. Others of its address have what there is for them all.
    Elsewhere,
}

/// What one connection has.
#[derive(Debug)]
pub(super) struct Account {
    parties: Parties,
    /// What the sums know of its frames. What the socket takes at once need not be told there.
    told: Cell<usize>,
    /// Which account its bytes are in, all of them.
    extra: Cell<bool>,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.tell(0);
    }
}

impl Account {
    /// Counts an answer of so many bytes that is being made.
    pub(super) fn make(&self, bytes: usize) -> Making {
        let (parties, extra) = (self.parties.clone(), self.extra.get());
        parties.making.bytes.fetch_add(bytes, Ordering::Relaxed);
        parties.add(extra, bytes);
        Making { parties, extra, bytes }
    }

    /// So much of `most` that there is for all connections. `None`: its address has its part.
    pub(super) fn part(&self, amount: usize, most: usize) -> Option<Taken> {
        let Parties { all, address, .. } = &self.parties;
        let extra = !self.parties.has_room(amount, most);
        let left = (most / EXTRA).saturating_sub(all.read(true));
        // What is more than there could ever be is somebody's, if nobody has anything: else it would wait for ever.
        let too_large = amount > left && all.read(true) > 0;
        if extra && (too_large || address.read(true) > left / 2) {
            return None;
        }
        self.parties.add(extra, amount);
        Some(Taken { parties: self.parties.clone(), extra, amount })
    }

    /// Memory for a request of `len` bytes, of `most` for all connections. `None`: its address has its part.
    pub(super) fn large(&self, len: usize, most: usize) -> Option<Large> {
        let taken = self.part(len, most)?;
        Some(Large { bytes: vec![0; len], _taken: taken })
    }

    /// Bytes that are being made.
    pub(super) fn making(&self) -> usize {
        self.parties.making.bytes.load(Ordering::SeqCst)
    }

    /// Somebody waits until fewer are being made, or he does not any more.
    pub(super) fn await_fewer(&self, awaited: bool) {
        self.parties.making.awaited.store(awaited, Ordering::SeqCst);
    }

    /// What happens when fewer are being made, while that is awaited.
    pub(super) fn fewer(&self) -> Event {
        self.parties.making.fewer.clone()
    }

    /// So many bytes of frames wait here now.
    pub(super) fn tell(&self, held: usize) {
        let told = self.told.replace(held);
        if held > told {
            self.parties.add(self.extra.get(), held - told);
        } else if held < told {
            self.parties.take(self.extra.get(), told - held);
        }
    }

    /// Whether there is no room for another answer, of `most` bytes for all connections, to a connection on which
    /// frames of `held` bytes wait.
    pub(super) fn too_much(&self, held: usize, most: usize) -> Option<TooMuch> {
        // What was told and is not taken back yet is in one of the accounts, which cannot be changed then.
        let mine = held.max(self.told.get()) + self.making();
        let free = most.saturating_sub(self.parties.all.read(false));
        let part = OF_AN_ADDRESS.saturating_mul(free);
        let has_part = self.parties.address.read(false) > part;
        if mine > 0 {
            let share = if self.extra.get() { 0 } else { free / OF_A_CONNECTION };
            return if mine > share {
                Some(TooMuch::Here(share / 2))
            } else {
                has_part.then_some(TooMuch::Here(mine / 2))
            };
        }
        self.extra.set(has_part);
        let left = (most / EXTRA).saturating_sub(self.parties.all.read(true));
        // Somebody of each address gets on, whatever others have.
        let waits = has_part && self.parties.address.read(true) > left / 2;
        waits.then_some(TooMuch::Elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;
    const ANSWER: usize = 10_000;

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Has a connection that takes nothing ask for as much as it gets.
    fn hoard(account: &Account) -> usize {
        let mut held = 0;
        while account.too_much(held, MOST).is_none() {
            let making = account.make(ANSWER);
            drop(making);
            held += ANSWER;
            account.tell(held);
        }
        held
    }

    #[test]
    fn an_address_leaves_something_to_others_however_many_connections_it_has() {
        let backlog = Backlog::default();
        let greedy: Vec<_> = (0..500).map(|_| backlog.account(ip(1))).collect();
        let taken: usize = greedy.iter().map(hoard).sum();
        assert_eq!(taken, backlog.bytes());
        let (usual, extra) = (backlog.all.read(false), backlog.all.read(true));
        assert!(usual <= MOST / 5 * 4 + ANSWER, "{usual}");
        assert!(extra <= MOST / 6 + ANSWER, "{extra}");
        assert!(usual > MOST / 10 * 7 && extra > MOST / 8, "and no less than there is: {taken}");
        // One more of that address waits for the others.
        let late = backlog.account(ip(1));
        assert_eq!(late.too_much(0, MOST), Some(TooMuch::Elsewhere));
        // Another address has a tenth of all on its first connection.
        let other = backlog.account(ip(2));
        let got = hoard(&other);
        assert!(got >= MOST / 16, "{got}");
        assert!(!other.extra.get());
        drop((greedy, other));
        assert_eq!((backlog.bytes(), late.too_much(0, MOST)), (0, None));
    }

    #[test]
    fn requests_of_an_address_have_its_part_and_no_more() {
        let backlog = Backlog::default();
        let greedy: Vec<_> = (0..500).map(|_| backlog.account(ip(1))).collect();
        let held: Vec<_> = greedy.iter().filter_map(|one| one.large(ANSWER, MOST)).collect();
        let (usual, extra) = (backlog.all.read(false), backlog.all.read(true));
        assert_eq!(held.len() * ANSWER, usual + extra);
        assert!(usual > MOST / 10 * 7 && usual <= MOST / 5 * 4 + ANSWER, "{usual}");
        assert!(extra > MOST / 8 && extra <= MOST / 6 + ANSWER, "{extra}");
        // Another address has some of what is left, for requests and for answers.
        let other = backlog.account(ip(2));
        let theirs = other.large(ANSWER, MOST).unwrap();
        assert_eq!(theirs.len(), ANSWER);
        assert_eq!(other.too_much(0, MOST), None, "nor does it wait for its own request");
        drop((held, theirs));
        assert_eq!(backlog.bytes(), 0);
        assert!(greedy[499].large(ANSWER, MOST).is_some());
    }

    #[test]
    fn who_takes_its_answers_goes_on_beside_some_of_its_address_who_do_not() {
        let backlog = Backlog::default();
        let mut greedy = Vec::new();
        while backlog.all.read(true) == 0 {
            greedy.push(backlog.account(ip(1)));
            hoard(greedy.last().unwrap());
        }
        let account = backlog.account(ip(1));
        for _ in 0..100 {
            assert_eq!(account.too_much(0, MOST), None);
            let making = account.make(ANSWER);
            assert_eq!(account.too_much(0, MOST), Some(TooMuch::Here(0)), "one, and no more");
            drop(making);
        }
    }

    #[test]
    fn many_addresses_cannot_have_what_there_is_for_one_more() {
        let backlog = Backlog::default();
        let all: Vec<_> = (0..200).map(|at| backlog.account(ip(at))).collect();
        let first: Vec<usize> = all.iter().map(hoard).collect();
        let most = MOST + MOST / EXTRA + all.len() * ANSWER;
        assert!(backlog.bytes() <= most, "{}", backlog.bytes());
        assert!(first.iter().all(|had| *had >= ANSWER), "each gets on");
    }

    /// Who has nothing has a part of what is left, and not beyond that what it asks for.
    #[test]
    fn large_requests_of_many_addresses_have_what_there_is_and_no_more() {
        const LARGE: usize = MOST / 8;
        let backlog = Backlog::default();
        let all: Vec<_> = (0..200).map(|at| backlog.account(ip(at))).collect();
        let held: Vec<_> = all.iter().filter_map(|one| one.large(LARGE, MOST)).collect();
        assert_eq!(held.len(), 8 + 4, "all that there is, and as many in the extra account");
        // What is small has room where that has not.
        let mut all: Vec<_> = held.into_iter().collect();
        all.pop();
        let late = backlog.account(ip(250));
        let small = late.large(ANSWER, MOST).expect("something is left");
        assert!(late.large(LARGE, MOST).is_none(), "{small:?}");
        drop((all, small));
        assert_eq!(backlog.bytes(), 0);
        // However little there is for all: one at a time.
        let one = late.large(4 * LARGE, LARGE).expect("nobody has anything");
        assert!(backlog.account(ip(1)).large(4 * LARGE, LARGE).is_none());
        drop(one);
    }

    #[test]
    fn what_grows_has_the_part_of_its_address_and_no_more() {
        let backlog = Backlog::default();
        let mut greedy: Vec<_> = (0..50).map(|_| backlog.nothing(ip(1))).collect();
        while greedy.iter_mut().any(|one| one.more(1000, MOST)) {}
        let taken = backlog.bytes();
        assert!(taken > MOST / 10 * 7 && taken <= MOST / 5 * 4 + 1000, "{taken}");
        let mut other = backlog.nothing(ip(2));
        assert!(other.more(ANSWER, MOST) && !greedy[0].more(1, MOST));
        assert!(!other.more(MOST, MOST), "there is not as much");
        greedy[0].keep(0);
        assert!(greedy[1].more(1000, MOST));
        drop((greedy, other));
        assert_eq!(backlog.bytes(), 0);
    }

    #[test]
    fn what_is_in_one_account_is_taken_from_that_one() {
        let backlog = Backlog::default();
        let (greedy, account) = (backlog.account(ip(1)), backlog.account(ip(1)));
        assert_eq!(account.too_much(0, MOST), None);
        account.tell(ANSWER);
        greedy.tell(MOST);
        // It has something still, so it is not asked which account it is to be in.
        assert!(account.too_much(0, MOST).is_some());
        account.tell(0);
        assert_eq!((backlog.all.read(false), backlog.all.read(true)), (MOST, 0));
        assert_eq!(account.too_much(0, MOST), None);
        account.tell(ANSWER);
        greedy.tell(0);
        account.tell(0);
        assert_eq!((backlog.all.read(false), backlog.all.read(true)), (0, 0));
    }

    #[test]
    fn addresses_that_are_gone_are_forgotten_and_networks_of_ipv6_are_one() {
        let backlog = Backlog::default();
        for at in 0..10_000_u32 {
            drop(backlog.account(IpAddr::V4(at.into())));
        }
        assert!(backlog.addresses.lock().unwrap().known.len() <= 66);
    }
}
