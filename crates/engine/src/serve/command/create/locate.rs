//! From what a create names to a file, which is there or comes to be (MS-FSA 2.1.5.1).

use std::sync::Arc;
use std::time::Duration;

use smb::files::FileKey;
use smb::fscc::Facts;
use smb::name::Stream as StreamName;
use smb::security::Descriptor;
use smb::{Access, Attributes, CreateAction, CreateOptions, Disposition, NtStatus};

use super::super::super::access::{self, Asker};
use super::super::super::aside::{aside_if, elsewhere};
use super::super::super::fs::{Create, Found, Handle, Stream, Vacancy, Want};
use super::super::super::open::{FileObject, stream_facts};
use super::{ATTEMPTS, Creating, SETTABLE};

/// How long a disk may take before the client is told that it waits. Nearly all take less; and the interim answer,
/// which is not signed, is an error to clients by go-smb2, which expect none to a CREATE that waits for nobody.
const PATIENCE: Duration = Duration::from_secs(1);

/// What Linux says for a mode where it has none to name (its ACL_NO_MODE, -1 in 16 bits or in 32). The bits of a mode are
/// those of chmod, the sticky bit and those of set-uid and set-gid among them.
const NO_MODE: u32 = 0xffff;

/// What was found or made on disk.
pub(super) struct Made {
    pub(super) object: Arc<FileObject>,
    pub(super) facts: Facts,
    pub(super) action: CreateAction,
    /// The file was there, and only its stream is new: what the file itself is like is no business of this open's.
    pub(super) adds_stream: bool,
    /// What a new file may inherit from its folder.
    pub(super) folder: Option<Descriptor>,
}

impl Made {
    fn new(
        handle: Arc<Handle>,
        stream: Option<Stream>,
        facts: Facts,
        action: CreateAction,
    ) -> Self {
        let object = Arc::new(FileObject::new(handle, stream));
        Self { object, facts, action, adds_stream: false, folder: None }
    }

    /// The file has come to be, or the stream.
    pub(super) fn is_new(&self) -> bool {
        self.action == CreateAction::Created
    }

    /// The file has come to be.
    pub(super) fn is_new_file(&self) -> bool {
        self.is_new() && !self.adds_stream
    }

    pub(super) fn overwrites(&self) -> bool {
        matches!(self.action, CreateAction::Superseded | CreateAction::Overwritten)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.object.stream.is_none() && self.object.handle.is_folder()
    }

    pub(super) fn key(&self) -> FileKey {
        let identity = self.object.handle.identity();
        let stream =
            self.object.stream.as_ref().map_or(0, |stream| access::name_hash(&stream.name()));
        FileKey { device: identity.device, inode: identity.inode, stream }
    }
}

impl Creating<'_, '_, '_> {
    /// Finds the file, or makes it, however often somebody else is faster.
    pub(super) async fn locate(&mut self) -> Result<Made, NtStatus> {
        // Where there are none, a colon is no more than a character that no name has: not even the data may be named.
        if self.path.stream().is_some() && !self.x.tree()?.share.config.streams {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        let room = self.x.channel.room_to_open(Handle::DESCRIPTORS)?;
        let mut attempt = 0;
        let mut made = loop {
            match self.look().await {
                Err(NtStatus::OBJECT_NAME_COLLISION)
                    if self.request.disposition != Disposition::Create && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                done => break done?,
            }
        };
        if let Some(object) = Arc::get_mut(&mut made.object) {
            object.count(room);
        }
        Ok(made)
    }

    /// Finds the file, or makes it.
    async fn look(&mut self) -> Result<Made, NtStatus> {
        let request = self.request;
        let desired = request.access.expanded();
        let named = match self.path.stream() {
            Some(StreamName::Named(name)) => Some(name.clone()),
            _ => None,
        };
        let named = named.as_deref();
        let mut want = Want::by_access(desired);
        want.link = request.options.contains(CreateOptions::OPEN_REPARSE_POINT);
        // What MAXIMUM_ALLOWED amounts to is known later: see `equip`.
        if named.is_some() {
            (want.read, want.write) = (false, false);
        }
        if request.disposition.overwrites() && named.is_none() {
            want.write = true;
        }
        let found = self.find(want).await?;
        let is_missing = matches!(found, Found::Missing(_));
        if is_missing {
            self.may_make()?;
        }
        let wish = Wish {
            named: named.map(str::to_owned),
            says_data: matches!(self.path.stream(), Some(StreamName::Data)),
            desired,
            disposition: request.disposition,
            options: request.options,
            attributes: request.attributes,
            mode: self.posix_mode().filter(|mode| *mode < NO_MODE).map(|mode| mode & 0o7777),
            posix: self.posix_mode().is_some(),
            adder: if is_missing || named.is_some() { Some(self.asker()?) } else { None },
        };
        match found {
            // Nothing is asked of the file system.
            Found::There(_) if named.is_none() && !wish.disposition.overwrites() => {
                wish.take(found)
            }
            found => aside_if(self.share, found.is_far(), move || wish.take(found)).await,
        }
    }

    /// Whether a file may come to be, or a stream of one.
    fn may_make(&self) -> Result<(), NtStatus> {
        let request = self.request;
        if !request.disposition.may_create() {
            return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
        }
        if request.options.contains(CreateOptions::DELETE_ON_CLOSE)
            && request.attributes.contains(Attributes::READONLY)
        {
            return Err(NtStatus::CANNOT_DELETE);
        }
        self.lease_is_free()
    }

    /// Looks the path up as this client does.
    async fn find(&mut self, want: Want) -> Result<Found, NtStatus> {
        match self.find_as(want).await {
            // A folder cannot be opened for writing, and need not be.
            Err(NtStatus::FILE_IS_A_DIRECTORY) => {
                self.find_as(Want { read: true, write: false, ..want }).await
            }
            found => found,
        }
    }

    /// Here if no disk is waited for, which would hold up everybody of this loop; else on a thread that may.
    async fn find_as(&mut self, want: Want) -> Result<Found, NtStatus> {
        let (exact, new) = (self.posix_mode().is_some(), self.request.disposition.may_create());
        let at_once = || self.share.open_at_once(&self.path, want, exact, new);
        if let Some(found) = self.share.timed(at_once)? {
            return Ok(found);
        }
        let (share, path) = (self.share.clone(), self.path.clone());
        let found = elsewhere(self.share, move || {
            let found = match exact {
                true => share.open_exact(&path, want),
                false => share.open(&path, want),
            };
            if let Ok(Found::There(handle)) = &found {
                ask_device(handle);
            }
            found
        });
        let found = self.x.wait(found, PATIENCE).await??;
        // Others of the session have gone on meanwhile.
        super::has_room(self.x)?;
        Ok(found)
    }

    /// The mode of a file that comes to be, if the client speaks of files as POSIX does.
    pub(super) fn posix_mode(&self) -> Option<u32> {
        let agreed = self.x.agreed().is_ok_and(|agreed| agreed.posix);
        self.request.contexts.posix_mode.filter(|_| agreed)
    }
}

/// Has it remembered what READ and WRITE ask of a device, here, where it may be waited for.
fn ask_device(handle: &Handle) {
    // They ask again, and say so, if that fails.
    let _ = handle.is_in_memory();
}

/// What a create wishes for, whatever is there.
struct Wish {
    /// The stream that it names.
    named: Option<String>,
    /// It names the stream that every file has.
    says_data: bool,
    /// The rights, expanded.
    desired: Access,
    disposition: Disposition,
    options: CreateOptions,
    attributes: Attributes,
    /// Permission bits by the POSIX extensions, if it has any to name.
    mode: Option<u32>,
    /// The client speaks of the file as POSIX does.
    posix: bool,
    /// Who would add a file to a folder, or a stream to a file, where that may have to be.
    adder: Option<Asker>,
}

impl Wish {
    /// Takes what is there, or makes it.
    fn take(self, found: Found) -> Result<Made, NtStatus> {
        match found {
            Found::There(handle) => self.there(handle),
            Found::Missing(vacancy) => self.missing(vacancy),
        }
    }

    fn adder(&self) -> Result<&Asker, NtStatus> {
        self.adder.as_ref().ok_or(NtStatus::ACCESS_DENIED)
    }

    /// The file is not there, and may be made.
    fn missing(&self, vacancy: Vacancy) -> Result<Made, NtStatus> {
        let folder = self.options.contains(CreateOptions::DIRECTORY_FILE) && self.named.is_none();
        let above = vacancy.folder_security()?;
        let above = above.map(|bytes| Descriptor::parse(&bytes)).transpose()?;
        let adds = if folder { Access::APPEND_DATA } else { Access::WRITE_DATA };
        self.adder()?.may_add(&vacancy.folder_facts()?, above.as_ref(), adds)?;
        let attributes = (self.attributes & SETTABLE) - Attributes::NORMAL;
        let handle = Arc::new(vacancy.create(Create { folder, attributes, mode: self.mode })?);
        ask_device(&handle);
        let stream = match &self.named {
            Some(name) => Some(Stream::create(handle.clone(), name)?),
            None => None,
        };
        let facts = *handle.first_facts();
        let facts = stream.as_ref().map_or(Ok(facts), |stream| stream_facts(facts, stream))?;
        let made = Made::new(handle, stream, facts, CreateAction::Created);
        Ok(Made { folder: above, ..made })
    }

    /// A stream is some of what its file holds: who adds one must be allowed to write the file, and to do with it
    /// whatever else it asks for, as with one that is there (MS-FSA 2.1.5.1.2.1).
    fn may_add_stream(&self, handle: &Handle, facts: &Facts) -> Result<(), NtStatus> {
        if facts.attributes.contains(Attributes::READONLY) && !facts.is_directory() {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let mut asks = self.desired | Access::WRITE_DATA;
        if self.options.contains(CreateOptions::DELETE_ON_CLOSE) {
            asks |= Access::DELETE;
        }
        self.adder()?.rights(handle, facts, asks, false).map(drop)
    }

    /// The file is there: may it be, and its stream?
    fn there(&self, handle: Handle) -> Result<Made, NtStatus> {
        let facts = *handle.first_facts();
        let handle = Arc::new(handle);
        let stream = match &self.named {
            None => None,
            Some(name) => match Stream::open(handle.clone(), name) {
                Ok(stream) => Some(stream),
                Err(NtStatus::OBJECT_NAME_NOT_FOUND) if self.disposition.may_create() => {
                    // Before there is a stream, as what is refused leaves none behind.
                    self.may_add_stream(&handle, &facts)?;
                    let stream = Stream::create(handle.clone(), name)?;
                    let facts = stream_facts(facts, &stream)?;
                    let made = Made::new(handle, Some(stream), facts, CreateAction::Created);
                    return Ok(Made { adds_stream: true, ..made });
                }
                Err(status) => return Err(status),
            },
        };
        if self.disposition == Disposition::Create {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        let folder = facts.is_directory() && stream.is_none();
        if folder && self.says_data {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        if folder && self.options.contains(CreateOptions::NON_DIRECTORY_FILE) {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        if !folder && self.options.contains(CreateOptions::DIRECTORY_FILE) {
            return Err(NtStatus::NOT_A_DIRECTORY);
        }
        if folder && self.disposition.overwrites() {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        let action = match self.disposition {
            Disposition::Supersede => CreateAction::Superseded,
            Disposition::Overwrite | Disposition::OverwriteIf => CreateAction::Overwritten,
            _ => CreateAction::Opened,
        };
        if action != CreateAction::Opened && stream.is_none() {
            // What hides must go on hiding (MS-FSA 2.1.5.1.2.1): what was told to, as in Samba, and not what its name
            // hides anyway, as nobody says that again. Of Linux nobody says any of it.
            let hides = facts.attributes & (Attributes::HIDDEN | Attributes::SYSTEM);
            let lost = !self.posix && !self.attributes.contains(hides);
            if lost && !self.attributes.contains(handle.hides()?) {
                return Err(NtStatus::ACCESS_DENIED);
            }
        }
        let facts = stream.as_ref().map_or(Ok(facts), |stream| stream_facts(facts, stream))?;
        Ok(Made::new(handle, stream, facts, action))
    }
}
