//! Requests in any order, with any fields, from two clients.
//!
//! However they come: each is answered once, the server never panics, and when all connections are gone nothing of
//! theirs is left.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use smb::fscc::fsctl::Code;
use smb::wire::context::{DurableFlags, DurableRequest, Lease, LeaseV2, Reconnect, Requested};
use smb::wire::header::{Command, Flags, HEADER_LEN, Header};
use smb::wire::{bare, close, create, flush, ioctl, lease_break, lock, oplock_break, read};
use smb::wire::{change_notify, query_directory, query_info, set_info};
use smb::{
    Access, Attributes, CreateOptions, Disposition, FileId, FileTime, Guid, LeaseKey, LeaseState,
    NtStatus, OplockLevel, SessionId, ShareAccess,
};

use crate::client::{Answer, Client, Offer, PREVIOUS, request, utf16, write_request};
use crate::place::Place;

/// Requests that one input may make.
const REQUESTS: usize = 200;

/// Opens of lost connections that a client tries to have again, and channels that it has besides the one it uses.
const DURABLE: usize = 8;
const CHANNELS: usize = 2;
/// Where a header has its flags, and the flag of a request that was perhaps sent before.
const FLAGS_AT: usize = 16;
const REPLAY: u32 = Flags::REPLAY.bits();

/// A server that keeps what is durable for a moment only: at the end of each input all is to be gone.
pub(crate) fn place() -> Place {
    Place::with(|config| config.limits.durable = Duration::from_millis(100))
}

/// What was met, so that a test sees that its inputs lead there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Met {
    /// Opens that may outlive their connection.
    pub(crate) durable: usize,
    /// Opens that were had again by another connection.
    pub(crate) reconnected: usize,
    /// Channels that were bound, and sessions that followed a lost one.
    pub(crate) bound: usize,
    pub(crate) followed: usize,
    /// Requests sent as if sent before.
    pub(crate) replayed: usize,
}

/// Names that they use, so that they meet.
const NAMES: [&str; 10] =
    ["a", "b", "A", "d", r"d\a", r"d\b", "a:s", "a:s:$DATA", r"d\..\a", "no\"name"];

/// What decides.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) =
            self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A small one mostly, and one near an end now and then.
    fn offset(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small) * 37,
            200..=239 => u64::from(self.number()),
            240..=247 => u64::MAX - u64::from(self.byte()),
            _ => (i64::MAX.cast_unsigned() + 3).wrapping_sub(u64::from(self.byte())),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte()) % 80;
        (0..len).map(|_| self.byte()).collect()
    }

    fn of<T: Copy>(&mut self, among: &[T]) -> T {
        among[usize::from(self.byte()) % among.len()]
    }
}

/// A connection, and what it has opened and waits for.
struct Seat {
    client: Client,
    files: Vec<FileId>,
    /// Requests without a last answer yet, and the interim answer of those that have one.
    open: HashMap<u64, Option<Answer>>,
    user: &'static str,
    guid: u8,
    /// Whether all requests are signed, and all answers have to be.
    sign: bool,
    /// Opens that may be had again when their connection is lost.
    durable: Vec<FileId>,
    /// Channels that it had before the one that it uses, with what was asked by them.
    others: Vec<Client>,
    met: Met,
}

impl Seat {
    fn new(place: &Place, user: &'static str, guid: u8, sign: bool) -> Self {
        let client = Self::come(place, user, guid, sign, None);
        Self {
            client,
            files: Vec::new(),
            open: HashMap::new(),
            user,
            guid,
            sign,
            durable: Vec::new(),
            others: Vec::new(),
            met: Met::default(),
        }
    }

    /// A connection with a session, which may follow one of before.
    fn come(
        place: &Place,
        user: &str,
        guid: u8,
        sign: bool,
        previous: Option<SessionId>,
    ) -> Client {
        let mut client = Client::connect(place.address(), Self::offer(guid));
        let logged_on = match previous {
            Some(session) => client.log_on_after(user, session),
            None => client.log_on(user, "pw"),
        };
        logged_on.expect("a user with the right password");
        client.sign = true;
        client.enter_tree("files").expect("a share");
        client.sign = sign;
        client
    }

    fn offer(guid: u8) -> Offer {
        Offer { guid: Guid([guid; 16]), ..Offer::default() }
    }

    /// Sits down again after its connection has ended, perhaps in the place of the session that it had.
    fn again(&mut self, place: &Place, follow: bool) {
        let previous = follow.then_some(self.client.session);
        self.client = Self::come(place, self.user, self.guid, self.sign, previous);
        self.met.followed += usize::from(follow);
        self.files.clear();
        self.open.clear();
        self.others.clear();
    }

    /// Goes on by another channel of its session. What the one before was asked may be under way.
    fn bind(&mut self, place: &Place) {
        let mut next = Client::connect(place.address(), Self::offer(self.guid));
        if next.bind(&self.client, self.user, "pw").is_err() {
            return self.again(place, false);
        }
        next.sign = self.sign;
        next.channel_sequence = self.client.channel_sequence;
        self.others.truncate(CHANNELS - 1);
        self.others.push(std::mem::replace(&mut self.client, next));
        self.open.clear();
        self.met.bound += 1;
    }

    /// Loses its other channels, and counts that.
    fn lose(&mut self) {
        self.others.clear();
        self.client.channel_sequence = self.client.channel_sequence.wrapping_add(1);
    }

    fn file(&self, choices: &mut Choices<'_>) -> FileId {
        let index = usize::from(choices.byte());
        match index {
            250.. => PREVIOUS,
            _ if self.files.is_empty() => FileId::default(),
            _ => self.files[index % self.files.len()],
        }
    }

    fn send(&mut self, messages: Vec<Vec<u8>>, related: bool) {
        let first = self.client.next;
        self.client.send(messages, related);
        // Only first ids are known to be used; those in between belong to charges of more than one.
        for id in first..self.client.next {
            self.open.insert(id, None);
        }
    }

    /// Reads until the answer to a last ECHO: what was asked before is answered, or waits. `false`: the connection is
    /// over.
    fn settle(&mut self) -> bool {
        let echo = self.client.next;
        self.client.send_one(request(Command::Echo, &bare::Request));
        loop {
            let Ok(answer) = self.client.try_receive() else { return false };
            let id = answer.header.message_id.0;
            if id == echo {
                return true;
            }
            self.take(id, answer);
        }
    }

    fn take(&mut self, id: u64, answer: Answer) {
        let known = self.open.get(&id);
        assert!(known.is_some(), "message {id} is answered twice, or was never sent");
        if answer.status() == NtStatus::PENDING {
            assert!(known.is_some_and(Option::is_none), "told twice that it takes longer");
            self.open.insert(id, Some(answer));
            return;
        }
        // What would wait for ever with others of its compound behind it is answered so (MS-SMB2 3.3.5.2.7).
        let waits = matches!(answer.header.command, Command::ChangeNotify | Command::Lock);
        let is_fault = answer.status() == NtStatus::INTERNAL_ERROR && !waits;
        assert!(!is_fault, "{:?}", answer.header);
        self.open.remove(&id);
        if answer.header.command == Command::Create && answer.status() == NtStatus::SUCCESS {
            let created = create::Response::parse(&answer.message).expect("an answer");
            self.files.push(created.file);
            if created.contexts.durable || created.contexts.durable_v2.is_some() {
                self.met.durable += 1;
                self.durable.truncate(DURABLE - 1);
                self.durable.insert(0, created.file);
            } else if self.durable.contains(&created.file) {
                // An answer says that an open is durable when it is made so, and not when it is had again.
                self.met.reconnected += 1;
            }
        }
    }

    /// Asks for an open of a lost connection, as clients do when they are back.
    fn reconnecting(&self, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
        let at = usize::from(choices.byte()) % self.durable.len().max(1);
        let reconnect = Some(*self.durable.get(at)?);
        let name = utf16(choices.of(&NAMES));
        let contexts = Requested { reconnect, ..Requested::default() };
        let oplock = OplockLevel::Batch;
        let body = create::Request { oplock, contexts, ..Client::create_body(&name) };
        Some(request(Command::Create, &body))
    }

    /// What a client says to a break, if one has come.
    fn acknowledge(&mut self, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
        let said = self.client.breaks.pop_front()?;
        if let Ok(lease) = lease_break::Notification::parse(&said.message) {
            let state = LeaseState::from_bits_retain(u32::from(choices.byte() & 7)) & lease.current;
            let ack = lease_break::Request { flags: 0, key: lease.key, state };
            return Some(request(Command::OplockBreak, &ack));
        }
        let oplock = oplock_break::Notification::parse(&said.message).expect("a break");
        let level = choices.of(&[OplockLevel::None, OplockLevel::Two, OplockLevel::Batch]);
        Some(request(Command::OplockBreak, &oplock_break::Request { level, file: oplock.file }))
    }
}

/// What a CREATE asks for besides: to outlive its connection, to be had again, or to know more.
fn besides(seat: &Seat, choices: &mut Choices<'_>) -> Requested<'static> {
    let create = Guid([choices.byte() % 4; 16]);
    let lost = match seat.durable.len() {
        0 => FileId::default(),
        count => seat.durable[usize::from(choices.byte()) % count],
    };
    let flags = DurableFlags::empty();
    let durable_v2 = Some(DurableRequest { timeout_ms: 0, flags, create });
    let none = Requested::default();
    match choices.byte() {
        0..=119 => none,
        120..=149 => Requested { durable: true, ..none },
        150..=189 => Requested { durable_v2, ..none },
        190..=209 => Requested { reconnect: Some(lost), ..none },
        210..=229 => {
            Requested { reconnect_v2: Some(Reconnect { file: lost, create, flags }), ..none }
        }
        230..=239 => Requested { durable_v2, app_instance: Some(create), ..none },
        240..=247 => Requested { maximal_access: Some(FileTime::NONE), ..none },
        _ => Requested { allocation: Some(choices.offset()), ..none },
    }
}

fn creating(seat: &Seat, choices: &mut Choices<'_>) -> Vec<u8> {
    let name = utf16(choices.of(&NAMES));
    let oplock = choices.of(&[
        OplockLevel::None,
        OplockLevel::Two,
        OplockLevel::Exclusive,
        OplockLevel::Batch,
        OplockLevel::Lease,
    ]);
    let lease = Lease {
        key: LeaseKey([choices.byte() % 4; 16]),
        state: LeaseState::from_bits_retain(u32::from(choices.byte() & 7)),
        v2: (choices.byte() & 1 != 0).then(LeaseV2::default),
        ..Lease::default()
    };
    let disposition = choices.of(&[
        Disposition::OpenIf,
        Disposition::Open,
        Disposition::Create,
        Disposition::Overwrite,
        Disposition::OverwriteIf,
        Disposition::Supersede,
    ]);
    let access = match choices.byte() {
        0..=127 => Access::FILE_READ | Access::FILE_WRITE | Access::DELETE,
        _ => Access::from_bits_retain(choices.number()),
    };
    let options = match choices.byte() {
        0..=127 => CreateOptions::empty(),
        128..=200 => choices.of(&[
            CreateOptions::DIRECTORY_FILE,
            CreateOptions::NON_DIRECTORY_FILE,
            CreateOptions::DELETE_ON_CLOSE,
        ]),
        _ => CreateOptions::from_bits_retain(choices.number() & 0x00ff_ffff),
    };
    let share = match choices.byte() {
        0..=199 => ShareAccess::all(),
        share => ShareAccess::from_bits_retain(u32::from(share & 7)),
    };
    let besides = besides(seat, choices);
    // Nothing is durable without one of these.
    let durable = besides.durable || besides.durable_v2.is_some();
    let oplock = if durable && choices.byte() < 200 { OplockLevel::Batch } else { oplock };
    let contexts = Requested {
        lease: (oplock == OplockLevel::Lease).then_some(lease),
        on_disk_id: choices.byte() & 1 != 0,
        ..besides
    };
    let body = create::Request {
        oplock,
        access,
        attributes: Attributes::empty(),
        share,
        disposition,
        options,
        name: &name,
        contexts,
        ..create::Request::default()
    };
    request(Command::Create, &body)
}

fn locking(file: FileId, choices: &mut Choices<'_>) -> Vec<u8> {
    let mut elements = Vec::new();
    for _ in 0..1 + choices.byte() % 3 {
        let flags = lock::Flags::from_bits_retain(u32::from(choices.byte() % 32));
        let (offset, length) = (choices.offset(), choices.offset());
        lock::Element { offset, length, flags }.encode(&mut elements);
    }
    let sequence = u32::from(choices.byte());
    let elements = lock::Elements::new(&elements);
    request(Command::Lock, &lock::Request { sequence, file, elements })
}

fn subject(choices: &mut Choices<'_>) -> query_info::Subject {
    use query_info::Subject;
    let all = [
        Subject::File,
        Subject::FileSystem,
        Subject::Security,
        Subject::Quota,
        Subject::Unknown(9),
    ];
    choices.of(&all)
}

/// A request, of this kind mostly or of any.
fn asking(seat: &mut Seat, choices: &mut Choices<'_>) -> Vec<u8> {
    let file = seat.file(choices);
    match choices.byte() % 16 {
        0..=3 => creating(seat, choices),
        4 => request(Command::Close, &close::Request { file, ..close::Request::default() }),
        5 => write_request(file, choices.offset(), &choices.bytes()),
        6 => {
            let (offset, length) = (choices.offset(), choices.number() % 100_000);
            request(Command::Read, &read::Request { file, offset, length, ..Default::default() })
        }
        7 | 8 => locking(file, choices),
        9 => {
            let body = query_info::Request {
                subject: subject(choices),
                class: choices.byte() % 64,
                output_max: choices.number() % 70_000,
                additional: choices.number(),
                file,
                input: &[],
                flags: 0,
            };
            request(Command::QueryInfo, &body)
        }
        10 => {
            let data = choices.bytes();
            let body = set_info::Request {
                subject: subject(choices),
                class: choices.byte() % 64,
                additional: choices.number(),
                file,
                data: &data,
            };
            request(Command::SetInfo, &body)
        }
        11 => {
            let pattern = utf16(choices.of(&["*", "?", "a", "", "<.\">"]));
            let body = query_directory::Request {
                class: choices.byte() % 64,
                output_max: choices.number() % 70_000,
                file,
                pattern: &pattern,
                ..query_directory::Request::default()
            };
            request(Command::QueryDirectory, &body)
        }
        12 => {
            let body = change_notify::Request {
                output_max: choices.number() % 70_000,
                file,
                filter: change_notify::Filter::from_bits_retain(choices.number()),
                ..change_notify::Request::default()
            };
            request(Command::ChangeNotify, &body)
        }
        13 => request(Command::Flush, &flush::Request { file, ..flush::Request::default() }),
        14 => {
            let input = choices.bytes();
            let code = choices.of(&[
                0x0014_0204,
                0x0014_01fc,
                0x0014_4064,
                0x0014_0078,
                0x0014_40f2,
                0x0009_00c4,
                0x0009_80c8,
                0x0009_40cf,
                0x0011_c017,
                0x0006_0194,
                0x0009_00a8,
                0x0009_8344,
            ]);
            let body = ioctl::Request {
                code,
                file,
                input: &input,
                output_max: choices.number() % 70_000,
                ..ioctl::Request::default()
            };
            request(Command::Ioctl, &body)
        }
        _ => {
            // Anything: a command, and a body of any bytes.
            let mut message =
                request(Command::from_wire(u16::from(choices.byte() % 20)), &bare::Request);
            message.truncate(HEADER_LEN);
            message.extend_from_slice(&[2 + choices.byte() % 62, 0]);
            message.extend_from_slice(&choices.bytes());
            message
        }
    }
}

/// The request says that it was perhaps sent before.
fn replay(message: &mut [u8]) {
    if let Some(flags) = message.get_mut(FLAGS_AT..).and_then(<[u8]>::first_chunk_mut) {
        *flags = (u32::from_le_bytes(*flags) | REPLAY).to_le_bytes();
    }
}

/// Whether a request ends its session or its tree, or begins another; or its connection, which is what becomes of one that
/// has negotiated otherwise than it says now (MS-SMB2 3.3.5.15.12).
fn ends(message: &[u8]) -> bool {
    let command = Header::parse(message).map(|header| header.command);
    let code = message.get(HEADER_LEN + 4..).and_then(<[u8]>::first_chunk);
    let validates = code == Some(&Code::VALIDATE_NEGOTIATE_INFO.0.to_le_bytes());
    if command == Ok(Command::Ioctl) && validates {
        return true;
    }
    matches!(
        command,
        Ok(Command::Negotiate
            | Command::SessionSetup
            | Command::Logoff
            | Command::TreeConnect
            | Command::TreeDisconnect
            | Command::Cancel)
    )
}

/// One input: a sequence of requests. What was met with on the way.
pub(crate) fn run(place: &Place, bytes: &[u8]) -> Met {
    let mut choices = Choices(bytes);
    let mut seats = [("alice", 1), ("bob", 2)]
        .map(|(user, guid)| Seat::new(place, user, guid, choices.byte() & 1 != 0));
    for _ in 0..REQUESTS {
        if choices.0.is_empty() {
            break;
        }
        let how = choices.byte();
        let seat = &mut seats[usize::from(how & 1)];
        seat.client.seal = how >> 2 & 7 == 7;
        let mut over = false;
        let mut sent = Vec::new();
        match how >> 5 {
            0..=3 => {
                let mut message = asking(seat, &mut choices);
                if how & 2 != 0 {
                    replay(&mut message);
                    seat.met.replayed += 1;
                }
                over = ends(&message);
                sent.clone_from(&message);
                seat.send(vec![message], false);
            }
            4 => {
                let all: Vec<_> =
                    (0..2 + choices.byte() % 3).map(|_| asking(seat, &mut choices)).collect();
                over = all.iter().any(|message| ends(message));
                sent = all.concat();
                seat.send(all, how & 8 != 0);
            }
            5 => {
                if let Some(ack) = seat.acknowledge(&mut choices) {
                    seat.send(vec![ack], false);
                } else {
                    match choices.byte() % 4 {
                        0 => seat.bind(place),
                        1 => seat.lose(),
                        2 => {
                            seat.again(place, true);
                            let again = seat.reconnecting(&mut choices);
                            again.into_iter().for_each(|message| seat.send(vec![message], false));
                        }
                        _ => seat.again(place, false),
                    }
                }
            }
            6 => {
                let waiting = seat.open.values().flatten().next().cloned();
                if let Some(waiting) = waiting {
                    seat.client.cancel(&waiting);
                }
            }
            _ => {
                let junk = choices.bytes();
                seat.client.send_frame(&junk);
                over = true;
            }
        }
        if over {
            // It may have ended the session, or the connection; or not.
            seat.again(place, false);
        } else {
            assert!(seat.settle(), "a connection ended that had done no wrong: {sent:02x?}");
        }
    }
    let [first, second] = seats.map(|seat| seat.met);
    nothing_is_left(place);
    Met {
        durable: first.durable + second.durable,
        reconnected: first.reconnected + second.reconnected,
        bound: first.bound + second.bound,
        followed: first.followed + second.followed,
        replayed: first.replayed + second.replayed,
    }
}

/// With their connections, all that clients had is gone.
fn nothing_is_left(place: &Place) {
    assert_eq!(place.panics(), 0, "requests whose serving panicked");
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let counts = place.counts();
        if counts == smb::files::Counts::default() {
            return;
        }
        assert!(Instant::now() < until, "left behind: {counts:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[cfg(test)]
mod tests {
    use super::{place, run};

    /// Numbers that look random and are the same each time.
    fn scramble(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let step = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        std::iter::repeat_with(step).take(len).collect()
    }

    /// Inputs that a fuzzer has found slow, on a machine that had other things to do.
    #[test]
    fn what_was_slow_once_is_answered_as_well() {
        let place = place();
        for bytes in [
            &b"\xbf\xbf\x0f\x0f\x0f\xbf\xbf\xbf\xbf\xbf\xac\x31\x96"[..],
            b"\x00\x00\x00\x00\x00\xfb\x19\x00\xf7\xa5\xf5\x00\x00\x00\x3d\xff",
        ] {
            let began = std::time::Instant::now();
            run(&place, bytes);
            println!("{bytes:02x?}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn who_says_what_was_not_negotiated_may_lose_the_connection() {
        run(&place(), b"\x00\xfe\x04\xfe\xfe\xea\x4a\x2b");
    }

    #[test]
    fn requests_in_any_order_leave_nothing_behind() {
        let place = place();
        let mut met = [0; 5];
        for seed in 0..60 {
            let one = run(&place, &scramble(seed, 1500));
            let all = [one.durable, one.reconnected, one.bound, one.followed, one.replayed];
            met.iter_mut().zip(all).for_each(|(sum, more)| *sum += more);
        }
        assert!(met.iter().all(|met| *met > 0), "these inputs do not lead everywhere: {met:?}");
        println!("durable, reconnected, bound, followed, replayed: {met:?}");
    }
}
