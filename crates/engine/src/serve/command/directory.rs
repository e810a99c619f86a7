//! QUERY_DIRECTORY (MS-SMB2 3.3.5.18).

use std::sync::Arc;
use std::time::{Duration, Instant};

use smb::fscc::{DirectoryClass, DirectoryWriter, Entry, Facts, PosixOwner};
use smb::name::Pattern;
use smb::security::Sid;
use smb::wire::query_directory::{Flags, Request, begin, finish};
use smb::{Access, NtStatus};

use super::super::aside::elsewhere;
use super::super::channel::{self, Exchange, PATIENCE};
use super::super::fs::Directory;
use super::super::open::{Listing, Open};
use super::super::runtime::{self, Event};
use super::Answer;

/// Entries after which others of this loop have their turn.
const TURN: usize = 128;

/// Bytes that an entry takes in an answer, about.
const ENTRY: usize = 128;

/// A file system that takes longer than this for one turn is read on a thread of its own from then on.
const SLOW: Duration = Duration::from_millis(2);

pub(super) async fn serve(x: &mut Exchange<'_>) -> Answer {
    let request = Request::parse(x.message)?;
    x.pay(request.payload_len())?;
    if request.output_max > x.agreed()?.payload {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let open = x.open_in_sequence(request.file, false)?;
    if !open.directory || open.file().is_none() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let class = DirectoryClass::from_wire(request.class)?;
    if class == DirectoryClass::Posix && !x.agreed()?.posix {
        return Err(NtStatus::INVALID_INFO_CLASS);
    }
    if !open.access.contains(Access::READ_DATA) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let pattern =
        if request.pattern.is_empty() { None } else { Some(Pattern::parse(request.pattern)?) };
    let Taken { before, reading: others } = take(x, &open).await?;
    let single = request.flags.contains(Flags::SINGLE);
    let (bytes, start) = x.reply.body();
    begin(bytes, start);
    let mut answer = Answering {
        out: std::mem::take(bytes),
        class,
        limit: request.output_max as usize,
        most: if single { 1 } else { usize::MAX },
        any: false,
    };
    let at_once = !open.must_be_file()?.keeps_waiting()
        && before.as_ref().is_none_or(|listing| !listing.slow);
    let flags = request.flags;
    let room = x.channel.room_to_open(1);
    let (mut listing, read, answer) = if at_once {
        match begun(&open, before, pattern, flags, room) {
            Ok(mut listing) => {
                let read = answer.in_turns(&mut listing).await;
                (Some(listing), read, answer)
            }
            Err(status) => (None, Err(status), answer),
        }
    } else {
        let this = open.clone();
        let share = open.must_be_file()?.of_share();
        let all = elsewhere(share, move || match begun(&this, before, pattern, flags, room) {
            Ok(mut listing) => {
                let read = answer.all(&mut listing);
                (Some(listing), read, answer)
            }
            Err(status) => (None, Err(status), answer),
        });
        all.await
    };
    let first = match &mut listing {
        Some(listing) if read.is_ok() => std::mem::replace(&mut listing.fresh, false),
        _ => false,
    };
    give_back(&open, listing, &others);
    let (bytes, start) = x.reply.body();
    *bytes = answer.out;
    read?;
    if !answer.any {
        return Err(if first { NtStatus::NO_SUCH_FILE } else { NtStatus::NO_MORE_FILES });
    }
    finish(bytes, start);
    Ok(NtStatus::SUCCESS)
}

/// An open's enumeration, taken away from it while it is read.
struct Taken {
    before: Option<Listing>,
    /// Those who would like to read it as well.
    reading: Event,
}

/// Takes the enumeration, once nobody else is reading it.
async fn take(x: &mut Exchange<'_>, open: &Arc<Open>) -> Result<Taken, NtStatus> {
    loop {
        let others = {
            let mut state = open.state();
            match &state.reading {
                None => {
                    let reading = Event::new();
                    state.reading = Some(reading.clone());
                    return Ok(Taken { before: state.listing.take(), reading });
                }
                Some(others) => others.wait(),
            }
        };
        x.wait(others, PATIENCE).await?;
    }
}

fn give_back(open: &Arc<Open>, listing: Option<Listing>, reading: &Event) {
    {
        let mut state = open.state();
        state.listing = listing;
        state.reading = None;
    }
    reading.notify_all();
}

/// The enumeration that the request goes on with, or begins if there is room for it.
fn begun(
    open: &Arc<Open>,
    before: Option<Listing>,
    pattern: Option<Pattern>,
    flags: Flags,
    room: Result<channel::Taken, NtStatus>,
) -> Result<Listing, NtStatus> {
    match before {
        Some(mut listing) if !flags.contains(Flags::REOPEN) => {
            if flags.contains(Flags::RESTART) {
                listing.directory.restart()?;
                listing.fresh = true;
                listing.found = false;
                listing.pattern = pattern.unwrap_or(listing.pattern);
            }
            Ok(listing)
        }
        before => {
            let pattern = match (pattern, before) {
                (Some(pattern), _) => pattern,
                (None, Some(before)) => before.pattern,
                (None, None) => return Err(NtStatus::OBJECT_NAME_INVALID),
            };
            Ok(Listing {
                directory: Directory::open(open.must_be_file()?)?,
                pattern,
                fresh: true,
                found: false,
                slow: false,
                _room: room?,
            })
        }
    }
}

/// An answer that fills up.
struct Answering {
    /// What is answered so far.
    out: Vec<u8>,
    class: DirectoryClass,
    /// Bytes that the client has room for.
    limit: usize,
    /// Entries that it would like.
    most: usize,
    /// Whether there is one in `out`.
    any: bool,
}

/// Why reading has stopped for now.
#[derive(PartialEq, Eq)]
enum Stopped {
    /// There are no more entries, or no more room, or enough of them.
    Done,
    /// It was its turn for long enough.
    Turn,
}

impl Answering {
    /// Reads as much as fits, in the midst of others.
    async fn in_turns(&mut self, listing: &mut Listing) -> Result<(), NtStatus> {
        let (mut out, class) = (std::mem::take(&mut self.out), self.class);
        let mut writer = DirectoryWriter::new(class, &mut out, self.limit);
        let mut entry = Entry::default();
        let result = loop {
            let began = Instant::now();
            self.share_out(listing, &writer);
            match self.some(listing, &mut writer, &mut entry, TURN) {
                Ok(Stopped::Turn) => {}
                Ok(Stopped::Done) => break Ok(()),
                Err(status) => break Err(status),
            }
            listing.slow |= began.elapsed() > SLOW;
            runtime::yield_now().await;
        };
        self.out = out;
        listing.directory.pause();
        result
    }

    /// Reads as much as fits, however long that takes.
    fn all(&mut self, listing: &mut Listing) -> Result<(), NtStatus> {
        let (mut out, class) = (std::mem::take(&mut self.out), self.class);
        let mut writer = DirectoryWriter::new(class, &mut out, self.limit);
        let result = self.some(listing, &mut writer, &mut Entry::default(), usize::MAX);
        self.out = out;
        result.map(drop)
    }

    /// Has another core, if one has nothing to do, look up entries of this answer.
    fn share_out(&self, listing: &mut Listing, writer: &DirectoryWriter<'_>) {
        let room = self.limit.saturating_sub(writer.len());
        let most = self.most.min(room / ENTRY);
        if listing.pattern.as_name().is_none()
            && most > TURN
            && runtime::another_sleeps()
            && let Some(errand) = listing.directory.errand(most)
            && !runtime::try_offload(move || errand.run())
        {
            // Nobody has time for it. At the next turn somebody may.
            listing.directory.pause();
        }
    }

    fn some(
        &mut self,
        listing: &mut Listing,
        writer: &mut DirectoryWriter<'_>,
        entry: &mut Entry,
        turn: usize,
    ) -> Result<Stopped, NtStatus> {
        let Listing { directory, pattern, found, .. } = listing;
        if let Some(name) = pattern.as_name() {
            if std::mem::replace(found, true) {
                return Ok(Stopped::Done);
            }
            let Some(only) = directory.find(name)? else { return Ok(Stopped::Done) };
            if !push(writer, self.class, &only) {
                *found = false;
                return Err(NtStatus::INFO_LENGTH_MISMATCH);
            }
            self.any = true;
            return Ok(Stopped::Done);
        }
        for _ in 0..turn {
            if self.most == 0 {
                return Ok(Stopped::Done);
            }
            match directory.next(&mut |name| pattern.matches(name), entry) {
                Ok(true) => {}
                Ok(false) => return Ok(Stopped::Done),
                // What is there already is worth an answer; the next one says what is wrong.
                Err(_) if self.any => return Ok(Stopped::Done),
                Err(status) => return Err(status),
            }
            if !push(writer, self.class, entry) {
                directory.put_back();
                // Not even one: the client must ask with more room.
                return if self.any {
                    Ok(Stopped::Done)
                } else {
                    Err(NtStatus::INFO_LENGTH_MISMATCH)
                };
            }
            self.any = true;
            self.most -= 1;
        }
        Ok(Stopped::Turn)
    }
}

fn push(writer: &mut DirectoryWriter<'_>, class: DirectoryClass, entry: &Entry) -> bool {
    if class == DirectoryClass::Posix {
        return writer.push_owned(&entry.facts, &entry.name, &owner(&entry.facts));
    }
    writer.push(&entry.facts, &entry.name)
}

/// Who a file belongs to, as the POSIX extensions tell it.
fn owner(facts: &Facts) -> PosixOwner {
    PosixOwner::new(&Sid::unix_user(facts.uid), &Sid::unix_group(facts.gid))
}
