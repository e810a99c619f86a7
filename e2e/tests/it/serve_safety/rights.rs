//! A server that runs as a plain user, as most do: what that user, who owns the files, may do with them. Root may do
//! everything, and whoever tests as root sees none of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use e2e::run::skipped;
use e2e::{built, installed};
use smb::wire::context::Requested;
use smb::wire::header::Command;
use smb::wire::negotiate::dialect::SMB_2_1;
use smb::wire::query_info::Subject;
use smb::wire::{create, query_info};
use smb::{Access, CreateOptions, Disposition, FileTime, NtStatus};

use super::client::{Client, wide};
use super::{Folder, Server};

/// No user of this host, surely.
const PLAIN: u32 = 41_003;
/// FileAccessInformation.
const ACCESS: u8 = 8;
const DENIED: Result<(Access, Option<Access>), NtStatus> = Err(NtStatus::ACCESS_DENIED);

/// A server that runs as a user other than root.
struct Plain {
    server: Server,
    /// What it serves, which is that user's.
    folder: Folder,
    /// Where else it looks.
    _home: Folder,
}

fn plain() -> Option<Plain> {
    let (folder, home) = (Folder::new(), Folder::new());
    if !rustix::process::geteuid().is_root() {
        let server = Server::start(folder.path());
        return Some(Plain { server, folder, _home: home });
    }
    if installed("setpriv").is_none() {
        skipped("there is no setpriv, by which root runs a server as a plain user");
        return None;
    }
    chown(folder.path(), Some(PLAIN), Some(PLAIN)).unwrap();
    // A copy, since a plain user may not look into our directories.
    let program = home.file("shunt");
    e2e::run::copy_program(built("shunt"), &program);
    let id = PLAIN.to_string();
    let at = |name: &str| format!("{name}={}", home.path().display());
    let setpriv = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    let env = ["env", &at("HOME"), &at("XDG_CONFIG_HOME"), &at("XDG_RUNTIME_DIR")];
    let before = [&setpriv[..], &env].concat();
    let server = Server::start_of(&program, folder.path(), 0, &before, &[]);
    Some(Plain { server, folder, _home: home })
}

/// What is there is opened, or made: what the open was granted, and what its user may do at most.
fn open(
    client: &mut Client,
    name: &str,
    access: Access,
) -> Result<(Access, Option<Access>), NtStatus> {
    let wide = wide(name);
    let body = create::Request {
        access,
        disposition: Disposition::OpenIf,
        options: match name {
            "" => CreateOptions::DIRECTORY_FILE,
            _ => CreateOptions::empty(),
        },
        name: &wide,
        contexts: Requested { maximal_access: Some(FileTime::NONE), ..Requested::default() },
        ..create::Request::default()
    };
    let (_, answer) =
        client.ask(Command::Create, 1, &body).map_err(|failure| failure.status().unwrap())?;
    let answer = create::Response::parse(&answer).unwrap();
    let told = client.query_info(answer.file, Subject::File, ACCESS).unwrap();
    let told = query_info::Response::parse(&told).unwrap().data;
    let granted = Access::from_bits_retain(u32::from_le_bytes(told.try_into().unwrap()));
    client.close(answer.file).unwrap();
    Ok((granted, answer.contexts.maximal_access.map(|maximal| maximal.access)))
}

/// Neither executing nor all that there is wants an `x` on a file.
#[test]
fn who_owns_a_file_may_do_everything_with_it() {
    let Some(Plain { mut server, folder, _home }) = plain() else { return };
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    for name in ["program.exe", "script", ""] {
        open(&mut client, name, Access::FILE_READ).unwrap();
        if name == "script" {
            fs::set_permissions(folder.file(name), Permissions::from_mode(0o755)).unwrap();
        }
        for wish in [
            Access::EXECUTE,
            Access::FILE_READ | Access::FILE_EXECUTE,
            Access::GENERIC_EXECUTE,
            Access::GENERIC_READ | Access::GENERIC_EXECUTE,
            Access::DELETE,
            Access::FILE_ALL,
            Access::GENERIC_ALL,
        ] {
            let wanted = Ok((wish.expanded(), Some(Access::FILE_ALL)));
            assert_eq!(open(&mut client, name, wish), wanted, "{name:?}, {wish:?}");
        }
        let most = open(&mut client, name, Access::MAXIMUM_ALLOWED);
        assert_eq!(most, Ok((Access::FILE_ALL, Some(Access::FILE_ALL))), "{name:?}");
    }
    // What is read-only on the host is executed, too.
    fs::set_permissions(folder.file("script"), Permissions::from_mode(0o444)).unwrap();
    let reads = Access::FILE_READ | Access::FILE_EXECUTE;
    assert!(open(&mut client, "script", reads).is_ok());
    assert_eq!(open(&mut client, "script", Access::WRITE_DATA), DENIED);
    server.must_live();
}

/// The root of a share goes with no open, whoever may ask for the right.
#[test]
fn the_root_of_a_share_is_not_deleted() {
    const DISPOSITION: u8 = 13;
    let Some(Plain { server, folder, _home }) = plain() else { return };
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let body = create::Request {
        access: Access::DELETE,
        options: CreateOptions::DIRECTORY_FILE,
        ..create::Request::default()
    };
    let (_, answer) = client.ask(Command::Create, 1, &body).unwrap();
    let root = create::Response::parse(&answer).unwrap().file;
    let refused = client.set_info(root, DISPOSITION, &[1]).unwrap_err();
    assert_eq!(refused.status(), Some(NtStatus::ACCESS_DENIED));
    client.close(root).unwrap();
    assert!(folder.path().is_dir());
}

/// Somebody else's file is read and executed, as its mode says, and no more.
#[test]
fn who_does_not_own_a_file_may_do_what_its_mode_says() {
    if !rustix::process::geteuid().is_root() {
        return skipped("the files of somebody else are made by root");
    }
    let Some(Plain { server, folder, _home }) = plain() else { return };
    fs::write(folder.file("roots"), "data").unwrap();
    fs::set_permissions(folder.file("roots"), Permissions::from_mode(0o644)).unwrap();
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    // Its folder is that user's own.
    let may = Access::FILE_READ | Access::FILE_EXECUTE | Access::DELETE;
    let most = open(&mut client, "roots", Access::MAXIMUM_ALLOWED);
    assert_eq!(most, Ok((may, Some(may))));
    for wish in [Access::WRITE_DATA, Access::DELETE_CHILD, Access::WRITE_DAC, Access::FILE_ALL] {
        assert_eq!(open(&mut client, "roots", wish), DENIED, "{wish:?}");
    }
}
