//! Files are touched as the Unix users of sessions (`unix_users`). Only root can do that: others skip this.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use smb::auth::{NtHash, User, UserFile};
use smb::fscc::Action;
use smb::wire::header::Command;
use smb::wire::{close, create, set_info};
use smb::{CreateOptions, Disposition, FileId, Guid, NtStatus, ShareAccess};

use crate::client::{Client, Offer, utf16};
use crate::folders::{ANY_NAME, changes, told, until_watched, watch};
use crate::place::Place;

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
/// The group of users whom only the file of users knows.
const NOGROUP: u32 = 65_534;

fn user(name: &str, uid: Option<u32>) -> User {
    let nt_hash = Some(NtHash::of_password("pw"));
    User { name: name.to_owned(), uid, nt_hash, disabled: false, expires: None }
}

/// A share that everybody may write to, for alice and bob, and for some who have no Unix user.
fn place() -> Option<Place> {
    if fs::metadata("/proc/self").map_or(0, |of| of.uid()) != 0 {
        println!("skipped: only root can act as other users");
        return None;
    }
    let mut users = UserFile::default();
    for (name, uid) in [
        ("alice", Some(ALICE)),
        ("bob", Some(BOB)),
        ("chief", Some(0)),
        ("root", None),
        ("no-such-user-surely", None),
    ] {
        users.set(user(name, uid)).unwrap();
    }
    Some(Place::with(|config| {
        config.users = users.to_text().to_string();
        config.unix_users = true;
        config.guest = true;
        mode(&config.shares[0].path, 0o777);
    }))
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn owner(path: &Path) -> (u32, u32) {
    let of = fs::metadata(path).unwrap();
    (of.uid(), of.gid())
}

fn both(place: &Place) -> (Client, Client) {
    let enter = |number, user| {
        let offer = Offer { guid: Guid([number; 16]), ..Offer::default() };
        Client::enter(place.address(), offer, user, "files")
    };
    (enter(7, "alice"), enter(8, "bob"))
}

fn open(
    client: &mut Client,
    name: &str,
    disposition: Disposition,
    options: CreateOptions,
) -> Result<FileId, NtStatus> {
    let (name, share) = (utf16(name), ShareAccess::all());
    let body = create::Request { share, disposition, options, ..Client::create_body(&name) };
    let answer = client.call(Command::Create, &body);
    match answer.status() {
        NtStatus::SUCCESS => Ok(create::Response::parse(&answer.message).unwrap().file),
        status => Err(status),
    }
}

fn there(client: &mut Client, name: &str) -> Result<FileId, NtStatus> {
    open(client, name, Disposition::Open, CreateOptions::empty())
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

/// FileDispositionInformation.
fn delete(client: &mut Client, file: FileId) -> NtStatus {
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class: 13, additional: 0, file, data: &[1] };
    client.call(Command::SetInfo, &body).status()
}

#[test]
fn what_a_user_makes_is_that_users() {
    let Some(place) = place() else { return };
    let (mut alice, mut bob) = both(&place);
    let large = vec![7; 200_000];
    for (client, name, uid) in [(&mut alice, "alices", ALICE), (&mut bob, "bobs", BOB)] {
        let folder = open(client, name, Disposition::Create, CreateOptions::DIRECTORY_FILE);
        shut(client, folder.unwrap());
        let file = client.open(&format!("{name}\\file"));
        // Past the server, and through it.
        assert_eq!(client.write(file, 0, &large), NtStatus::SUCCESS);
        client.sign = true;
        assert_eq!(client.write(file, 0, &large), NtStatus::SUCCESS);
        client.sign = false;
        assert_eq!(client.read(file, 0, 200_000).as_ref(), Ok(&large));
        shut(client, file);
        let folder = place.folder().join(name);
        assert_eq!(owner(&folder), (uid, NOGROUP));
        assert_eq!(owner(&folder.join("file")), (uid, NOGROUP));
    }
    assert_eq!(place.panics(), 0);
}

#[test]
fn what_a_user_may_not_do_on_the_host_is_refused() {
    let Some(place) = place() else { return };
    let (mut alice, mut bob) = both(&place);
    let file = alice.open("private");
    shut(&mut alice, file);
    mode(&place.folder().join("private"), 0o600);
    assert_eq!(there(&mut bob, "private"), Err(NtStatus::ACCESS_DENIED));
    let again = there(&mut alice, "private").unwrap();
    shut(&mut alice, again);
    let folder = open(&mut alice, "mine", Disposition::Create, CreateOptions::DIRECTORY_FILE);
    shut(&mut alice, folder.unwrap());
    let file = alice.open("mine\\file");
    shut(&mut alice, file);
    mode(&place.folder().join("mine"), 0o700);
    assert_eq!(there(&mut bob, "mine\\file"), Err(NtStatus::ACCESS_DENIED));
    let new = open(&mut bob, "mine\\new", Disposition::Create, CreateOptions::empty());
    assert_eq!(new, Err(NtStatus::ACCESS_DENIED));
    // Of a file that is root's, however many of root's capabilities the server has.
    let roots = place.folder().join("roots");
    fs::write(&roots, "not yours").unwrap();
    mode(&roots, 0o600);
    assert_eq!(there(&mut alice, "roots"), Err(NtStatus::ACCESS_DENIED));
    // In a sticky folder, names are their owners'.
    mode(place.folder(), 0o1777);
    let file = alice.open("sticky");
    shut(&mut alice, file);
    mode(&place.folder().join("sticky"), 0o666);
    assert_eq!(there(&mut bob, "sticky"), Err(NtStatus::ACCESS_DENIED), "with DELETE");
    assert_eq!(place.panics(), 0);
}

#[test]
fn who_wished_a_deletion_must_be_allowed_to_and_not_who_closes_last() {
    let Some(place) = place() else { return };
    let (mut alice, mut bob) = both(&place);
    let folder = open(&mut alice, "mine", Disposition::Create, CreateOptions::DIRECTORY_FILE);
    shut(&mut alice, folder.unwrap());
    mode(&place.folder().join("mine"), 0o755);
    let file = place.folder().join("mine/file");
    let ways = [CreateOptions::empty(), CreateOptions::DELETE_ON_CLOSE];
    for options in ways {
        let hers = open(&mut alice, "mine\\file", Disposition::Create, options).unwrap();
        mode(&file, 0o666);
        // Reading only: what is in alice's folder bob may not delete.
        let name = utf16("mine\\file");
        let access = smb::Access::READ_DATA;
        let share = ShareAccess::all();
        let disposition = Disposition::Open;
        let body = create::Request { access, share, disposition, ..Client::create_body(&name) };
        let answer = bob.call(Command::Create, &body).good();
        let his = create::Response::parse(&answer.message).unwrap().file;
        if options.is_empty() {
            assert_eq!(delete(&mut alice, hers), NtStatus::SUCCESS);
        }
        shut(&mut alice, hers);
        assert!(file.exists(), "bob has it open");
        shut(&mut bob, his);
        assert!(!file.exists(), "{options:?}: it is left");
    }
    assert_eq!(place.panics(), 0);
}

#[test]
fn who_watches_a_tree_hears_of_no_names_in_folders_that_are_not_theirs_to_read() {
    let Some(place) = place() else { return };
    let private = |name: &str| {
        let folder = place.folder().join(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        folder
    };
    let write = |folder: &Path, name: &str| fs::write(folder.join(name), "x").unwrap();
    let (_alice, mut bob) = both(&place);
    let hers = private("hers");
    // Looked at after all that is directly in the share.
    let deep = place.folder().join("all/below");
    fs::create_dir_all(&deep).unwrap();
    for all in [deep.parent().unwrap(), &deep] {
        mode(all, 0o755);
    }
    let (access, share) = (smb::Access::READ_DATA, ShareAccess::all());
    let (disposition, options) = (Disposition::Open, CreateOptions::DIRECTORY_FILE);
    let body = create::Request { access, share, disposition, options, ..Client::create_body(&[]) };
    let answer = bob.call(Command::Create, &body).good();
    let root = create::Response::parse(&answer.message).unwrap().file;
    watch(&mut bob, root, ANY_NAME, true);
    until_watched(&deep);
    write(&hers, "secret");
    write(&deep, "one");
    assert_eq!(changes(&bob.receive().good()), [told(Action::Added, "all\\below\\one")]);
    // And one that comes later, of which only the name is to be seen.
    watch(&mut bob, root, ANY_NAME, true);
    let later = private("later");
    assert_eq!(changes(&bob.receive().good()), [told(Action::Added, "later")]);
    watch(&mut bob, root, ANY_NAME, true);
    write(&later, "secret");
    write(&deep, "two");
    assert_eq!(changes(&bob.receive().good()), [told(Action::Added, "all\\below\\two")]);
    assert_eq!(place.panics(), 0);
}

/// FileBasicInformation: no times but the last write, and attributes.
fn describe(client: &mut Client, file: FileId, written: u64, attributes: u32) -> NtStatus {
    let times = [0, 0, written, 0].map(u64::to_le_bytes).concat();
    let data = [&times[..], &attributes.to_le_bytes(), &[0; 4]].concat();
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class: 4, additional: 0, file, data: &data };
    client.call(Command::SetInfo, &body).status()
}

/// To the kernel times are the owner's. Windows sets them on what it has written, whoever owns it.
#[test]
fn who_may_write_a_file_may_set_its_times() {
    const HIDDEN: u32 = 2;
    /// 2020-01-01 in both calendars.
    const SAID: (u64, i64) = (132_223_104_000_000_000, 1_577_836_800);
    let Some(place) = place() else { return };
    let (mut alice, mut bob) = both(&place);
    let file = alice.open("file");
    assert_eq!(alice.write(file, 0, b"hers"), NtStatus::SUCCESS);
    shut(&mut alice, file);
    let on_host = place.folder().join("file");
    mode(&on_host, 0o666);
    let file = there(&mut bob, "file").unwrap();
    assert_eq!(bob.write(file, 0, b"bobs"), NtStatus::SUCCESS);
    assert_eq!(describe(&mut bob, file, SAID.0, HIDDEN), NtStatus::SUCCESS);
    let now = fs::metadata(&on_host).unwrap();
    assert_eq!((now.mtime(), now.uid()), (SAID.1, ALICE));
    // And there they stay, as he has said them.
    assert_eq!(bob.write(file, 0, b"more"), NtStatus::SUCCESS);
    assert_eq!(fs::metadata(&on_host).unwrap().mtime(), SAID.1);
    // What he makes is his own, still.
    let own = bob.open("own");
    assert_eq!(owner(&place.folder().join("own")).0, BOB);
    shut(&mut bob, own);
    // Who may no longer write may not, and nothing is done by halves.
    let attributes = || {
        let mut value = [0; 256];
        rustix::fs::getxattr(&on_host, "user.DOSATTRIB", &mut value)
            .map(|len| value[..len].to_vec())
    };
    let before = attributes();
    mode(&on_host, 0o644);
    assert_eq!(describe(&mut bob, file, SAID.0 + 10_000_000, 0x80), NtStatus::ACCESS_DENIED);
    assert_eq!(fs::metadata(&on_host).unwrap().mtime(), SAID.1);
    assert_eq!(attributes(), before);
    shut(&mut bob, file);
    assert_eq!(place.panics(), 0);
}

#[test]
fn guests_are_nobody() {
    let Some(place) = place() else { return };
    let mut guest = Client::connect(place.address(), Offer::default());
    guest.log_on("mallory", "whatever").unwrap();
    guest.enter_tree("files").unwrap();
    let file = guest.open("guests");
    shut(&mut guest, file);
    let (uid, _) = owner(&place.folder().join("guests"));
    assert!(uid != 0 && uid != ALICE, "{uid}");
}

#[test]
fn who_is_root_or_has_no_unix_user_is_not_let_in() {
    let Some(place) = place() else { return };
    for name in ["chief", "root", "no-such-user-surely"] {
        let mut client = Client::connect(place.address(), Offer::default());
        assert_eq!(client.log_on(name, "pw"), Err(NtStatus::LOGON_TYPE_NOT_GRANTED), "{name}");
        client.session = smb::SessionId(0);
        assert_eq!(client.log_on(name, "wrong"), Err(NtStatus::LOGON_FAILURE), "{name}");
    }
}

#[test]
fn a_list_of_rights_is_heeded_whoever_may_read_it() {
    let Some(place) = place() else { return };
    let (mut alice, mut bob) = both(&place);
    let name = utf16("listed");
    let body = create::Request {
        access: smb::Access::FILE_ALL,
        share: ShareAccess::all(),
        disposition: Disposition::Create,
        ..Client::create_body(&name)
    };
    let answer = alice.call(Command::Create, &body).good();
    let file = create::Response::parse(&answer.message).unwrap().file;
    // Bob may write by the mode and not read. The list, which is an attribute that only readers see, counts as well.
    let writes =
        create::Request { access: smb::Access::WRITE_DATA, disposition: Disposition::Open, ..body };
    for (denied, status) in [(99, NtStatus::SUCCESS), (BOB, NtStatus::ACCESS_DENIED)] {
        let (subject, data) = (set_info::Subject::Security, denies(denied));
        let body = set_info::Request { subject, class: 0, additional: 4, file, data: &data };
        alice.call(Command::SetInfo, &body).good();
        mode(&place.folder().join("listed"), 0o622);
        assert_eq!(bob.call(Command::Create, &writes).status(), status, "{denied} is denied");
    }
    assert_eq!(place.panics(), 0);
}

/// A self-relative descriptor with a list (MS-DTYP 2.4.5, 2.4.6): this user is denied all, everybody else allowed.
fn denies(uid: u32) -> Vec<u8> {
    let ace = |kind: u8, sid: &[u8]| {
        let mut ace = vec![kind, 0];
        ace.extend(u16::try_from(8 + sid.len()).unwrap().to_le_bytes());
        ace.extend(0x001f_01ff_u32.to_le_bytes());
        ace.extend(sid);
        ace
    };
    let mut unix_user = vec![1, 2, 0, 0, 0, 0, 0, 22];
    unix_user.extend(1_u32.to_le_bytes());
    unix_user.extend(uid.to_le_bytes());
    let everybody = [1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let aces = [ace(1, &unix_user), ace(0, &everybody)].concat();
    let mut bytes = vec![1, 0, 0x04, 0x80];
    bytes.extend([0; 12]);
    bytes.extend(20_u32.to_le_bytes());
    bytes.extend([2, 0]);
    bytes.extend(u16::try_from(8 + aces.len()).unwrap().to_le_bytes());
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(aces);
    bytes
}
