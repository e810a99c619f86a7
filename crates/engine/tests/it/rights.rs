//! What a descriptor that was set keeps a user from, by whichever way: bob and carol have numbers of their own, and the
//! files are those of the user whom the server runs as, who is alice here.

use std::os::unix::fs::MetadataExt;

use smb::auth::{NtHash, User, UserFile};
use smb::security::{Ace, AceFlags, Acl, Control, Descriptor, SecurityInfo, Sid, from_posix};
use smb::wire::context::Requested;
use smb::wire::header::Command;
use smb::wire::{close, create, query_info, set_info};
use smb::{Access, Attributes, CreateOptions, Disposition, FileId, Guid, NtStatus, ShareAccess};

use crate::client::{Client, Offer, utf16};
use crate::information::renaming;
use crate::place::Place;

const BOB: u32 = 41_002;
const CAROL: u32 = 41_003;

const READONLY: u32 = 1;
const NORMAL: u32 = 0x80;

fn place() -> Place {
    Place::with(|config| {
        let mut users = UserFile::default();
        for (name, uid) in [("alice", None), ("bob", Some(BOB)), ("carol", Some(CAROL))] {
            let nt_hash = Some(NtHash::of_password("pw"));
            let user = User { name: name.to_owned(), uid, nt_hash, disabled: false, expires: None };
            users.set(user).unwrap();
        }
        config.users = users.to_text().to_string();
    })
}

fn enter(place: &Place, number: u8, user: &str) -> Client {
    let offer = Offer { guid: Guid([number; 16]), ..Offer::default() };
    Client::enter(place.address(), offer, user, "files")
}

fn both(place: &Place) -> (Client, Client) {
    (enter(place, 7, "alice"), enter(place, 8, "bob"))
}

/// An open that asks for this, of what is there or is made.
fn ask(name: &[u8], access: Access) -> create::Request<'_> {
    let options = CreateOptions::empty();
    create::Request { access, options, share: ShareAccess::all(), ..Client::create_body(name) }
}

fn try_open(client: &mut Client, body: &create::Request<'_>) -> Result<FileId, NtStatus> {
    let answer = client.call(Command::Create, body);
    match answer.status() {
        NtStatus::SUCCESS => Ok(create::Response::parse(&answer.message).unwrap().file),
        status => Err(status),
    }
}

fn open(client: &mut Client, name: &str, access: Access) -> Result<FileId, NtStatus> {
    try_open(client, &ask(&utf16(name), access))
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

/// Somebody may do all, and bob this.
fn lets(place: &Place, bob: Access) -> Descriptor {
    let owner = Sid::unix_user(std::fs::metadata(place.folder()).unwrap().uid());
    let aces = [Ace::allow(owner, Access::FILE_ALL), Ace::allow(Sid::unix_user(BOB), bob)];
    let dacl = Some(Acl::new(aces));
    Descriptor { control: Control::DACL_PRESENT, dacl, ..Descriptor::default() }
}

fn secure(client: &mut Client, file: FileId, new: &Descriptor) -> NtStatus {
    let (subject, data) = (set_info::Subject::Security, new.to_bytes());
    let additional = SecurityInfo::DACL.bits();
    let body = set_info::Request { subject, class: 0, additional, file, data: &data };
    client.call(Command::SetInfo, &body).status()
}

/// A file of alice's, of which bob may do this.
fn make(place: &Place, alice: &mut Client, name: &str, bob: Access) {
    let file = open(alice, name, Access::FILE_ALL).unwrap();
    assert_eq!(alice.write(file, 0, b"data"), NtStatus::SUCCESS);
    assert_eq!(secure(alice, file, &lets(place, bob)), NtStatus::SUCCESS);
    shut(alice, file);
}

/// Gives a file attributes.
fn describe(client: &mut Client, name: &str, attributes: u32) {
    const BASIC: u8 = 4;
    let file = open(client, name, Access::WRITE_ATTRIBUTES).unwrap();
    let data = [&[0; 32][..], &attributes.to_le_bytes(), &[0; 4]].concat();
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class: BASIC, additional: 0, file, data: &data };
    client.call(Command::SetInfo, &body).good();
    shut(client, file);
}

/// The descriptor that a file has, and its extended attributes, which streams are too.
fn kept(client: &mut Client, name: &str) -> (Descriptor, Vec<u8>) {
    const EA: u8 = 15;
    let mut file = || open(client, name, Access::READ_CONTROL | Access::READ_EA).unwrap();
    let file = file();
    let mut query = |subject, class, additional: u32| {
        let (output_max, input) = (65536, &[][..]);
        let body =
            query_info::Request { subject, class, output_max, input, additional, flags: 0, file };
        let answer = client.call(Command::QueryInfo, &body);
        match answer.status() {
            NtStatus::SUCCESS => {
                query_info::Response::parse(&answer.message).unwrap().data.to_vec()
            }
            _ => Vec::new(),
        }
    };
    let parts = SecurityInfo::OWNER | SecurityInfo::GROUP | SecurityInfo::DACL;
    let descriptor = query(query_info::Subject::Security, 0, parts.bits());
    let eas = query(query_info::Subject::File, EA, 0);
    shut(client, file);
    (Descriptor::parse(&descriptor).unwrap(), eas)
}

/// Whether a file has a named stream.
fn has_stream(client: &mut Client, name: &str) -> bool {
    let name = utf16(name);
    let disposition = Disposition::Open;
    let there = try_open(client, &create::Request { disposition, ..ask(&name, Access::READ_DATA) });
    there.map(|file| shut(client, file)).is_ok()
}

/// A stream is new, and its file is not.
#[test]
fn who_adds_a_stream_may_do_with_the_file_what_was_allowed_before() {
    let place = place();
    let (mut alice, mut bob) = both(&place);
    make(&place, &mut alice, "file", Access::READ_DATA | Access::WRITE_DATA);
    let before = kept(&mut alice, "file").0;
    for more in [Access::WRITE_DAC, Access::WRITE_OWNER, Access::WRITE_ATTRIBUTES, Access::WRITE_EA]
    {
        let refused = open(&mut bob, "file:stream", Access::WRITE_DATA | more);
        assert_eq!(refused, Err(NtStatus::ACCESS_DENIED), "{more:?}");
        assert!(!has_stream(&mut alice, "file:stream"), "{more:?}: nothing is left behind");
    }
    // As much as there is, is what there was.
    let most = open(&mut bob, "file:most", Access::MAXIMUM_ALLOWED).unwrap();
    let all = lets(&place, Access::FILE_ALL);
    assert_eq!(secure(&mut bob, most, &all), NtStatus::ACCESS_DENIED);
    assert_eq!(bob.write(most, 0, b"mine"), NtStatus::SUCCESS);
    shut(&mut bob, most);
    assert!(kept(&mut alice, "file").0 == before, "the file is as it was");
    // And with a file that is new, it is as with any new file.
    let own = open(&mut bob, "own:stream", Access::FILE_ALL).unwrap();
    assert_eq!(secure(&mut bob, own, &all), NtStatus::SUCCESS);
    assert_eq!(place.panics(), 0);
}

/// What a new file may be given, one that is there has already.
#[test]
fn a_stream_that_is_new_gives_its_file_nothing() {
    let place = place();
    let (mut alice, mut bob) = both(&place);
    make(&place, &mut alice, "file", Access::READ_DATA | Access::WRITE_DATA);
    let before = kept(&mut alice, "file");
    let (name, wished) = (utf16("file:given"), lets(&place, Access::FILE_ALL).to_bytes());
    let mut ea = Vec::new();
    let one = smb::fscc::Ea { flags: 0, name: "ONE".to_owned(), value: b"1".to_vec() };
    smb::fscc::put_eas(&[one], 4096, &mut ea).unwrap();
    let contexts = Requested { security: Some(&wished), ea: Some(&ea), ..Requested::default() };
    let body = create::Request { contexts, ..ask(&name, Access::WRITE_DATA) };
    let file = try_open(&mut bob, &body).unwrap();
    shut(&mut bob, file);
    assert!(has_stream(&mut alice, "file:given"));
    assert!(kept(&mut alice, "file") == before, "the file is as it was");
}

/// READONLY is of all that a file holds, and of nothing that a folder does.
#[test]
fn a_file_that_is_read_only_gets_no_stream() {
    let place = place();
    let (mut alice, _) = both(&place);
    for (name, options, wanted) in
        [("file", CreateOptions::empty(), false), ("folder", CreateOptions::DIRECTORY_FILE, true)]
    {
        let wide = utf16(name);
        let body = create::Request { options, ..ask(&wide, Access::FILE_ALL) };
        let file = try_open(&mut alice, &body).unwrap();
        shut(&mut alice, file);
        describe(&mut alice, name, READONLY);
        let stream = format!("{name}:stream");
        let got = open(&mut alice, &stream, Access::READ_DATA | Access::WRITE_DATA);
        assert_eq!(got.is_ok(), wanted, "{name}: {got:?}");
        assert_eq!(has_stream(&mut alice, &stream), wanted, "{name}");
    }
}

/// FILE_DELETE_ON_CLOSE with as many rights as there are, which may be too few.
fn doomed(name: &[u8]) -> create::Request<'_> {
    let options = CreateOptions::DELETE_ON_CLOSE;
    let disposition = Disposition::OpenIf;
    create::Request { options, disposition, ..ask(name, Access::MAXIMUM_ALLOWED) }
}

#[test]
fn what_goes_with_an_open_is_what_it_may_delete() {
    let place = place();
    let (mut alice, mut bob) = both(&place);
    let above = utf16("above");
    let options = CreateOptions::DIRECTORY_FILE;
    let body = create::Request { options, ..ask(&above, Access::FILE_ALL) };
    let folder = try_open(&mut alice, &body).unwrap();
    // By the folder he might delete what is in it.
    let most = Access::FILE_ALL - Access::DELETE - Access::DELETE_CHILD;
    assert_eq!(secure(&mut alice, folder, &lets(&place, most)), NtStatus::SUCCESS);
    let on_host = place.folder().join("above/file");
    for (may, wanted) in [
        (Access::empty(), Err(NtStatus::ACCESS_DENIED)),
        (most, Err(NtStatus::ACCESS_DENIED)),
        (most | Access::DELETE, Ok(())),
    ] {
        make(&place, &mut alice, "above\\file", may);
        for name in ["above\\file:stream", "above\\file"] {
            let name = utf16(name);
            let got = try_open(&mut bob, &doomed(&name)).map(|file| shut(&mut bob, file));
            assert_eq!(got, wanted, "{may:?}");
            assert!(!has_stream(&mut alice, "above\\file:stream"), "{may:?}");
        }
        assert_eq!(on_host.exists(), wanted.is_err(), "{may:?}");
    }
    // With a file that he makes he does as he likes.
    let name = utf16("above\\own");
    let own = try_open(&mut bob, &doomed(&name)).unwrap();
    shut(&mut bob, own);
    assert!(!place.folder().join("above/own").exists());
    assert_eq!(place.panics(), 0);
}

/// What is not deleted in the end is not on its way out meanwhile, for others who would open it.
#[test]
fn what_cannot_be_deleted_goes_with_no_open() {
    for read_only in [false, true] {
        let place = Place::with(|config| config.shares[0].read_only = read_only);
        std::fs::create_dir_all(place.folder().join("full/child")).unwrap();
        std::fs::write(place.folder().join("file"), b"data").unwrap();
        let (mut alice, mut bob) = both(&place);
        let denied = Err(NtStatus::ACCESS_DENIED);
        let rest = if read_only { denied } else { Ok(()) };
        for (name, options, wanted, stays) in [
            ("full", CreateOptions::DIRECTORY_FILE, rest, true),
            ("", CreateOptions::DIRECTORY_FILE, denied, true),
            ("full\\child", CreateOptions::DIRECTORY_FILE, rest, read_only),
            ("file", CreateOptions::empty(), rest, read_only),
        ] {
            let wide = utf16(name);
            let looks = create::Request { options, ..ask(&wide, Access::FILE_READ) };
            let looks = create::Request { disposition: Disposition::Open, ..looks };
            let hers = try_open(&mut alice, &looks).unwrap();
            let options = options | CreateOptions::DELETE_ON_CLOSE;
            let got = try_open(&mut bob, &create::Request { options, ..doomed(&wide) });
            assert_eq!(got.map(|file| shut(&mut bob, file)), wanted, "{name}");
            let again = try_open(&mut alice, &looks).map(|file| shut(&mut alice, file));
            let wanted = if stays { Ok(()) } else { Err(NtStatus::DELETE_PENDING) };
            assert_eq!(again, wanted, "{name}");
            shut(&mut alice, hers);
            assert_eq!(place.folder().join(name.replace('\\', "/")).exists(), stays, "{name}");
        }
        assert_eq!(place.counts().opens, 0);
    }
}

/// A stream that is renamed to the name of the data (MS-FSA 2.1.5.15.11) is written to the file.
#[test]
fn who_may_not_write_a_file_makes_no_stream_its_data() {
    const RENAME: u8 = 10;
    let place = place();
    let (mut alice, mut bob) = both(&place);
    let on_host = || std::fs::read(place.folder().join("file")).unwrap();
    let deletes = Access::READ_DATA | Access::DELETE;
    let rename = |client: &mut Client, file| {
        let (subject, data) = (set_info::Subject::File, renaming("::$DATA", true));
        let body = set_info::Request { subject, class: RENAME, additional: 0, file, data: &data };
        client.call(Command::SetInfo, &body).status()
    };
    for (may, attributes, wanted) in [
        (deletes, NORMAL, NtStatus::ACCESS_DENIED),
        (deletes | Access::WRITE_DATA, READONLY, NtStatus::ACCESS_DENIED),
        (deletes | Access::WRITE_DATA, NORMAL, NtStatus::SUCCESS),
    ] {
        make(&place, &mut alice, "file", may);
        let stream = alice.open("file:stream");
        assert_eq!(alice.write(stream, 0, b"its"), NtStatus::SUCCESS);
        shut(&mut alice, stream);
        describe(&mut alice, "file", attributes);
        let stream = open(&mut bob, "file:stream", deletes).unwrap();
        assert_eq!(rename(&mut bob, stream), wanted, "{may:?}");
        assert_eq!(on_host() == b"its", wanted == NtStatus::SUCCESS, "{may:?}");
        shut(&mut bob, stream);
        let left = has_stream(&mut alice, "file:stream");
        assert_eq!(left, wanted != NtStatus::SUCCESS, "{may:?}");
        describe(&mut alice, "file", NORMAL);
    }
    // What is longer is cut off.
    let stream = alice.open("file:stream");
    assert_eq!(alice.write(stream, 0, b"x"), NtStatus::SUCCESS);
    assert_eq!(rename(&mut alice, stream), NtStatus::SUCCESS);
    assert_eq!(on_host(), b"x");
    shut(&mut alice, stream);
    assert_eq!(place.counts().opens, 0);
}

/// What is shown is what counts for who looks: as the owner of a file that the server has made for him he may change who
/// may do what with it, and goes on as its owner.
#[test]
fn who_lets_somebody_in_stays_the_owner() {
    let place = place();
    let (mut alice, mut bob) = both(&place);
    let mut carol = enter(&place, 9, "carol");
    let reads = Access::FILE_READ | Access::FILE_EXECUTE;
    let file = open(&mut bob, "file", Access::FILE_ALL).unwrap();
    assert_eq!(bob.write(file, 0, b"data"), NtStatus::SUCCESS);
    let shown = kept(&mut bob, "file").0;
    let (owner, group) = (Sid::unix_user(BOB), shown.group.unwrap().to_gid().unwrap());
    assert_eq!(shown.owner, Some(owner));
    let list = |aces: Vec<Ace>| Descriptor {
        control: Control::DACL_PRESENT,
        dacl: Some(Acl { aces }),
        ..Descriptor::default()
    };
    // As the dialog of a client does it: what was there, and one more.
    let mut aces = shown.dacl.clone().unwrap().aces;
    aces.push(Ace::allow(Sid::unix_user(CAROL), reads));
    assert_eq!(secure(&mut bob, file, &list(aces)), NtStatus::SUCCESS);
    shut(&mut bob, file);
    let all = Access::FILE_ALL;
    let file = open(&mut bob, "file", all).expect("he has locked himself out");
    assert_eq!(kept(&mut bob, "file").0.owner, Some(owner));
    // Then nobody but these two.
    let two = [Ace::allow(owner, all), Ace::allow(Sid::unix_user(CAROL), reads)];
    assert_eq!(secure(&mut bob, file, &list(two.to_vec())), NtStatus::SUCCESS);
    let denied = Err(NtStatus::ACCESS_DENIED);
    let get =
        |client: &mut Client, access| open(client, "file", access).map(|file| shut(client, file));
    assert_eq!(get(&mut bob, all), Ok(()));
    assert_eq!(get(&mut carol, reads), Ok(()));
    assert_eq!(get(&mut alice, Access::READ_DATA), denied);
    for more in [Access::WRITE_DATA, Access::WRITE_DAC] {
        assert_eq!(get(&mut carol, more), denied, "{more:?}");
    }
    // Then nobody but him, in words that a mode would have as well, and nobody of the others is the server's user by that.
    for aces in
        [vec![two[0]], from_posix(BOB, group, 0o600, Attributes::ARCHIVE).dacl.unwrap().aces]
    {
        assert_eq!(secure(&mut bob, file, &list(aces)), NtStatus::SUCCESS);
        for (client, wanted) in [(&mut bob, Ok(())), (&mut carol, denied), (&mut alice, denied)] {
            assert_eq!(get(client, Access::READ_DATA), wanted);
        }
        assert_eq!(get(&mut bob, all), Ok(()));
    }
    // Who is denied is, whoever else he is.
    let deny = Ace::deny(Sid::unix_user(CAROL), all);
    let aces = vec![deny, two[0], Ace::allow(Sid::EVERYONE, reads)];
    assert_eq!(secure(&mut bob, file, &list(aces)), NtStatus::SUCCESS);
    assert_eq!(get(&mut carol, Access::READ_DATA), denied);
    assert_eq!(get(&mut alice, Access::READ_DATA), Ok(()));
    shut(&mut bob, file);
    assert_eq!(place.panics(), 0);
}

/// What stands for creators in a folder's list is who creates.
#[test]
fn what_is_made_in_a_folder_with_a_list_is_its_makers() {
    let place = place();
    let (mut alice, mut bob) = both(&place);
    let mut carol = enter(&place, 9, "carol");
    let name = utf16("folder");
    let options = CreateOptions::DIRECTORY_FILE;
    let body = create::Request { options, ..ask(&name, Access::FILE_ALL) };
    let folder = try_open(&mut alice, &body).unwrap();
    let adds = Access::FILE_READ | Access::FILE_WRITE | Access::FILE_EXECUTE;
    let mut list = lets(&place, adds);
    let passes = AceFlags::OBJECT_INHERIT | AceFlags::CONTAINER_INHERIT;
    let aces = &mut list.dacl.as_mut().unwrap().aces;
    aces.push(Ace::allow(Sid::unix_user(CAROL), adds));
    aces.push(
        Ace::allow(Sid::CREATOR_OWNER, Access::FILE_ALL).with(passes | AceFlags::INHERIT_ONLY),
    );
    assert_eq!(secure(&mut alice, folder, &list), NtStatus::SUCCESS);
    shut(&mut alice, folder);
    let file = open(&mut bob, "folder\\file", Access::FILE_ALL).unwrap();
    shut(&mut bob, file);
    let file = open(&mut bob, "folder\\file", Access::FILE_ALL).expect("it is his own");
    shut(&mut bob, file);
    let hers = open(&mut carol, "folder\\file", Access::READ_DATA);
    assert_eq!(hers, Err(NtStatus::ACCESS_DENIED));
}
