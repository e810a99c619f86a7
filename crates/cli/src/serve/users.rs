//! `shunt serve user`: who may log on, in a file that only its owner can read.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{BufRead, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use smb::FileTime;
use smb::auth::{NtHash, User, UserFile, day_to_time};
use zeroize::Zeroizing;

use crate::table::{self, Side};

// Each architecture has other numbers for these.
const O_NOFOLLOW: i32 = OFlag::O_NOFOLLOW.bits();
const O_NONBLOCK: i32 = OFlag::O_NONBLOCK.bits();
/// How often what somebody else has put beside the file is put out of the way.
const STRANGE_MAX: u32 = 8;

/// Longest file that is read: more than its limit of users needs.
const FILE_MAX: u64 = 64 << 20;
/// Longest password, in bytes.
const PASSWORD_MAX: usize = 1024;

#[derive(Args, Debug)]
pub(crate) struct UserArguments {
    #[command(subcommand)]
    action: Action,
}

/// Which file.
#[derive(Args, Debug)]
struct Place {
    /// The file [~/.config/shunt/users, for root /etc/shunt/users]
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Named {
    /// The user's name; case does not count
    name: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Let somebody log on; the password is asked for, or read from standard input
    Add {
        #[command(flatten)]
        named: Named,
        /// Number of the Unix user, by which lists of rights know the user, and as whom files are touched with `unix_users`
        /// [as the server runs; with `unix_users` that of the same name]
        #[arg(long, value_name = "UID", value_parser = clap::value_parser!(u32).range(..0xffff_ffff))]
        uid: Option<u32>,
        /// When the user's time is over: the start of this day in UTC, such as 2027-01-31 [never]
        #[arg(long, value_name = "DAY", value_parser = day)]
        expires: Option<FileTime>,
        /// No password: the user comes in by Kerberos only
        #[arg(long)]
        no_password: bool,
    },
    /// Change the password of a user
    Passwd(Named),
    /// Take a user out
    Delete(Named),
    /// Keep a user in the file, and out of the server
    Disable(Named),
    /// Let a disabled user in again
    Enable(Named),
    /// Show all users
    List(Place),
}

/// A day on the command line.
fn day(text: &str) -> Result<FileTime, String> {
    day_to_time(text).ok_or_else(|| "a day is written so: 2027-01-31".into())
}

/// The file that is meant where none is named; `None`: there is no home.
pub(super) fn usual_path() -> Option<PathBuf> {
    if sys::call::geteuid() == 0 {
        return Some("/etc/shunt/users".into());
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    Some(config?.join("shunt/users"))
}

impl Place {
    fn path(&self) -> anyhow::Result<PathBuf> {
        self.users.clone().or_else(usual_path).context("no HOME here: say --users FILE")
    }
}

/// Reads a file of users, if nobody else can: what stands there is as good as passwords.
///
/// # Errors
///
/// What is wrong with it, and what to do.
pub(super) fn read(path: &Path) -> anyhow::Result<UserFile> {
    let name = path.display();
    let file = File::open(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            anyhow!(
                "{name}: there is no such file: `shunt serve user add NAME --users {name}` makes it"
            )
        }
        ErrorKind::PermissionDenied => anyhow!("{name}: you may not read it: {e}"),
        _ => anyhow!("{name}: {e}"),
    })?;
    let about = file.metadata().with_context(|| name.to_string())?;
    if about.mode() & 0o077 != 0 {
        bail!(
            "{name}: others can read or write it, and what it has is as good as passwords: chmod 600 {name}"
        );
    }
    let owner = about.uid();
    if owner != 0 && owner != sys::call::geteuid() {
        bail!(
            "{name}: it belongs to user {owner}, who could let anybody in: chown it to who runs the server"
        );
    }
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_MAX).read_to_string(&mut text).with_context(|| name.to_string())?;
    UserFile::parse(&text).with_context(|| name.to_string())
}

/// Where a file lies.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// What is to be put in place of a file of users, whole or not at all. Who has it is the only one who changes the file.
///
/// Not the folder is locked: that can be held by all who may read it. This is open to its owner alone.
struct Beside {
    path: PathBuf,
    file: Flock<File>,
}

impl Beside {
    fn take(of: &Path) -> std::io::Result<Self> {
        let mut path = of.as_os_str().to_owned();
        path.push(".new");
        let path = PathBuf::from(path);
        let mut strange = 0;
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let opened = options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path);
            match opened {
                Ok(file) if is_ours_alone(&file.metadata()?) => {
                    let lock = Flock::lock(file, FlockArg::LockExclusive);
                    let file = lock.map_err(|(_, errno)| std::io::Error::from(errno))?;
                    // Whoever had it before us has put it where it belongs, or removed it.
                    if !is_at(&file, &path)? {
                        continue;
                    }
                    // What one who was killed has left.
                    file.set_len(0)?;
                    return Ok(Self { path, file });
                }
                Err(e) if e.kind() == ErrorKind::NotFound || strange == STRANGE_MAX => {
                    return Err(e);
                }
                Ok(_) if strange == STRANGE_MAX => return Err(ErrorKind::AlreadyExists.into()),
                // If it cannot be put out of the way, what was wrong at first is to be told.
                Err(e) => std::fs::remove_file(&path).map_err(|_| e)?,
                Ok(_) => std::fs::remove_file(&path)?,
            }
            strange += 1;
        }
    }

    fn put(mut self, at: &Path, users: &UserFile) -> std::io::Result<()> {
        self.file.write_all(users.to_text().as_bytes())?;
        self.file.sync_all()?;
        // Somebody else, who may as well, has put it out of the way.
        if !is_at(&self.file, &self.path)? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        std::fs::rename(&self.path, at)?;
        File::open(folder(at))?.sync_all()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Before another one has the lock.
        if is_at(&self.file, &self.path).unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether nobody but us can open a file, and it has one name.
fn is_ours_alone(about: &Metadata) -> bool {
    let is_ours = about.is_file() && about.uid() == sys::call::geteuid();
    // None, if whoever had it has removed it since.
    is_ours && about.mode() & 0o077 == 0 && about.nlink() <= 1
}

/// Whether this file is what the path leads to.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let file = file.metadata()?;
    let there = std::fs::symlink_metadata(path);
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino())))
}

/// The users that there are; none, if there is no file yet.
fn read_or_none(path: &Path) -> anyhow::Result<UserFile> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(UserFile::default()),
        _ => read(path),
    }
}

/// A line without its end.
fn line(from: impl BufRead) -> std::io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::with_capacity(PASSWORD_MAX));
    from.take(PASSWORD_MAX as u64).read_line(&mut text)?;
    let len = text.trim_end_matches(['\r', '\n']).len();
    text.truncate(len);
    Ok(text)
}

/// What is typed, key by key, until the line ends. `None`: given up with Ctrl-C or Ctrl-D.
fn typed(mut from: impl Read) -> anyhow::Result<Option<Zeroizing<String>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(PASSWORD_MAX));
    // One by one: the next ones may be for somebody else.
    let mut byte = [0];
    while from.read(&mut byte)? > 0 {
        match byte[0] {
            b'\r' | b'\n' => {
                let text = std::str::from_utf8(&bytes).context("the password is not UTF-8")?;
                return Ok(Some(Zeroizing::new(text.to_owned())));
            }
            // Ctrl-C and Ctrl-D.
            3 | 4 => return Ok(None),
            // Ctrl-U.
            21 => bytes.clear(),
            // Backspace takes a whole letter.
            8 | 127 => while bytes.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            byte if bytes.len() < PASSWORD_MAX => bytes.push(byte),
            _ => bail!("a password has at most {PASSWORD_MAX} bytes"),
        }
    }
    Ok(None)
}

/// Asks on the terminal, without showing what is typed. Ctrl-C is read as a key, so that the terminal is as it
/// was when we end.
fn ask(prompt: &str) -> anyhow::Result<Zeroizing<String>> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let terminal =
        terminal.context("no terminal to ask on: give the password on standard input")?;
    (&terminal).write_all(prompt.as_bytes())?;
    let before = tcgetattr(&terminal)?;
    let mut quiet = before.clone();
    quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
    tcsetattr(&terminal, SetArg::TCSAFLUSH, &quiet)?;
    let typed = typed(&terminal);
    tcsetattr(&terminal, SetArg::TCSAFLUSH, &before)?;
    (&terminal).write_all(b"\n")?;
    typed?.context("given up; nothing has changed")
}

fn password(name: &str) -> anyhow::Result<NtHash> {
    let stdin = std::io::stdin();
    let typed = if stdin.is_terminal() {
        let first = ask(&format!("Password of {name}: "))?;
        if *ask("Again: ")? != *first {
            bail!("these were two different passwords; nothing has changed");
        }
        first
    } else {
        line(stdin.lock())?
    };
    if typed.is_empty() {
        bail!("an empty password would let anybody in; nothing has changed");
    }
    Ok(NtHash::of_password(&typed))
}

/// Does it.
pub(super) fn run(arguments: &UserArguments) -> anyhow::Result<()> {
    match &arguments.action {
        Action::Add { named, uid, expires, no_password } => {
            let asks = |name: &str| if *no_password { Ok(None) } else { password(name).map(Some) };
            add(named, *uid, *expires, asks)
        }
        Action::Passwd(named) => passwd(named, |name| password(name).map(Some)),
        Action::Delete(Named { name, place }) => {
            change(place, |users| users.remove(name).map(drop).map_err(Into::into))
        }
        Action::Disable(Named { name, place }) => {
            change(place, |users| Ok(users.disable(name, true)?))
        }
        Action::Enable(Named { name, place }) => {
            change(place, |users| Ok(users.disable(name, false)?))
        }
        Action::List(place) => {
            let text = list(&read(&place.path()?)?);
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        }
    }
}

/// The mode of a folder that is made for the file, which is closed whatever that is.
fn mode_of(folder: &Path) -> u32 {
    // There the host's settings are as well, which are for everybody.
    if folder.starts_with("/etc") { 0o755 } else { 0o700 }
}

/// Reads, changes and writes the file, one at a time.
fn change(
    place: &Place,
    what: impl FnOnce(&mut UserFile) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = place.path()?;
    let name = || path.display().to_string();
    let dir = folder(&path);
    if !dir.exists() {
        DirBuilder::new().recursive(true).mode(mode_of(dir)).create(dir).with_context(name)?;
    }
    // Through a link, the file itself.
    let path = path.canonicalize().unwrap_or_else(|_| path.clone());
    // Whose it is, before anything is put out of the way for it.
    read_or_none(&path)?;
    let beside = Beside::take(&path).with_context(name)?;
    let mut users = read_or_none(&path)?;
    what(&mut users).with_context(name)?;
    beside.put(&path, &users).with_context(name)
}

/// Reads a password for a user who may be given one, with no lock held meanwhile.
fn password_for(
    Named { name, place }: &Named,
    may: impl Fn(&UserFile) -> anyhow::Result<User>,
    password: impl FnOnce(&str) -> anyhow::Result<Option<NtHash>>,
) -> anyhow::Result<()> {
    may(&read_or_none(&place.path()?)?)?;
    let nt_hash = password(name)?;
    change(place, |users| {
        let user = may(users)?;
        users.set(User { nt_hash, ..user })?;
        Ok(())
    })
}

fn add(
    named: &Named,
    uid: Option<u32>,
    expires: Option<FileTime>,
    password: impl FnOnce(&str) -> anyhow::Result<Option<NtHash>>,
) -> anyhow::Result<()> {
    let name = &named.name;
    let may = |users: &UserFile| {
        if users.get(name).is_some() {
            bail!("{name} is there already; `shunt serve user passwd {name}` changes the password");
        }
        let user = User { name: name.clone(), uid, nt_hash: None, disabled: false, expires };
        UserFile::default().set(user.clone())?;
        Ok(user)
    };
    password_for(named, may, password)
}

fn passwd(
    named: &Named,
    password: impl FnOnce(&str) -> anyhow::Result<Option<NtHash>>,
) -> anyhow::Result<()> {
    let name = &named.name;
    let may =
        |users: &UserFile| users.get(name).cloned().with_context(|| format!("no user {name:?}"));
    password_for(named, may, password)
}

fn list(users: &UserFile) -> String {
    let row = |user: &User| {
        let uid = user.uid.map_or_else(|| "-".into(), |uid| uid.to_string());
        let state = match (user.disabled, &user.nt_hash) {
            (true, _) => "disabled",
            (_, Some(_)) => "enabled",
            (_, None) => "Kerberos",
        };
        let expires = user.expires.map_or_else(|| "never".into(), smb::auth::time_to_day);
        let comment = users.comment(&user.name).unwrap_or_default().to_owned();
        vec![user.name.clone(), uid, state.into(), expires, comment]
    };
    let columns = [
        ("User", Side::Left),
        ("UID", Side::Right),
        ("State", Side::Left),
        ("Expires", Side::Left),
        ("Comment", Side::Left),
    ];
    table::render(&columns, &users.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn named(name: &str, path: &Path) -> Named {
        Named { name: name.into(), place: Place { users: Some(path.to_owned()) } }
    }

    fn says(text: &'static str) -> impl FnOnce(&str) -> anyhow::Result<Option<NtHash>> {
        move |_| Ok(Some(NtHash::of_password(text)))
    }

    fn act(action: Action) -> anyhow::Result<()> {
        run(&UserArguments { action })
    }

    #[test]
    fn users_come_change_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/users");
        add(&named("ann", &path), Some(1000), None, says("one")).unwrap();
        add(&named("Bob", &path), None, None, says("two")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let again = add(&named("ANN", &path), None, None, says("three")).unwrap_err();
        assert!(format!("{again:#}").contains("passwd ANN"), "{again:#}");

        passwd(&named("bob", &path), says("four")).unwrap();
        act(Action::Disable(named("ann", &path))).unwrap();
        let users = read(&path).unwrap();
        assert_eq!(
            *users.get("bob").unwrap().nt_hash.as_ref().unwrap().to_hex(),
            *NtHash::of_password("four").to_hex()
        );
        assert_eq!(users.get("bob").unwrap().name, "Bob");
        assert!(users.get("ann").unwrap().disabled);
        let shown = list(&users);
        assert!(shown.contains("ann   1000  disabled  never"), "{shown}");
        let expires = Some(day("2031-02-28").unwrap());
        let tess = named("tess", &path);
        act(Action::Add { named: tess, uid: None, expires, no_password: true }).unwrap();
        let shown = list(&read(&path).unwrap());
        assert!(shown.contains("tess     -  Kerberos  2031-02-28"), "{shown}");
        assert!(["2031-02-29", "28.2.2031", "", "never"].iter().all(|text| day(text).is_err()));

        act(Action::Enable(named("ann", &path))).unwrap();
        act(Action::Delete(named("bob", &path))).unwrap();
        let users = read(&path).unwrap();
        assert!(users.get("bob").is_none() && !users.get("ann").unwrap().disabled);
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn the_folder_of_the_hosts_settings_is_open() {
        assert_eq!(mode_of(Path::new("/etc/shunt")), 0o755);
        assert_eq!(mode_of(Path::new("/srv/ann/.config/shunt")), 0o700);
    }

    #[test]
    fn comments_stay_and_what_fails_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        add(&named("ann", &path), None, None, says("one")).unwrap();
        let text =
            format!("# ours\n\n{}on leave\n", std::fs::read_to_string(&path).unwrap().trim_end());
        std::fs::write(&path, &text).unwrap();
        for failed in [
            act(Action::Delete(named("nobody", &path))),
            act(Action::Disable(named("nobody", &path))),
            passwd(&named("nobody", &path), says("x")),
            passwd(&named("ann", &path), |_| bail!("no terminal")),
            add(&named("a/b", &path), None, None, |_| panic!("asked for nothing")),
        ] {
            assert!(failed.is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        add(&named("bob", &path), None, None, says("two")).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with(&text));
    }

    #[test]
    fn a_file_that_others_read_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let absent = format!("{:#}", read(&path).err().unwrap());
        assert!(absent.contains("user add"), "{absent}");
        std::fs::write(&path, "").unwrap();
        for (mode, good) in
            [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o622, false)]
        {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let outcome = read(&path);
            assert_eq!(outcome.is_ok(), good, "{mode:o}");
            if let Err(bad) = outcome {
                assert!(bad.to_string().contains("chmod 600"), "{bad}");
            }
        }
    }

    #[test]
    fn two_at_a_time_lose_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        // What one who was killed has left.
        std::fs::write(dir.path().join("users.new"), "half").unwrap();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    add(&named(&format!("user{i}"), path), None, None, says("x")).unwrap()
                });
            }
        });
        assert_eq!(read(&path).unwrap().len(), 8);
    }

    /// Whoever may read a folder can lock it.
    #[test]
    fn nobody_else_can_hold_a_change_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let folder = File::open(dir.path()).unwrap();
        let _held = Flock::lock(folder, FlockArg::LockExclusive).map_err(|(_, e)| e).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let of_thread = path.clone();
        std::thread::spawn(move || {
            tell.send(add(&named("ann", &of_thread), None, None, says("x")).is_ok())
        });
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
        // Nor does what lies there lead elsewhere.
        let (beside, other) = (dir.path().join("users.new"), dir.path().join("other"));
        std::fs::write(&other, "theirs").unwrap();
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&other, &beside).unwrap();
        add(&named("bob", &path), None, None, says("x")).unwrap();
        std::fs::hard_link(&other, &beside).unwrap();
        add(&named("cara", &path), None, None, says("x")).unwrap();
        nix::unistd::mkfifo(&beside, nix::sys::stat::Mode::S_IRWXU).unwrap();
        act(Action::Disable(named("cara", &path))).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "theirs");
        assert_eq!(read(&path).unwrap().len(), 3);
        std::fs::create_dir(&beside).unwrap();
        let error = act(Action::Disable(named("ann", &path))).unwrap_err();
        assert!(format!("{error:#}").contains("Is a directory"), "{error:#}");
    }

    #[test]
    fn a_line_is_a_password() {
        for (typed, password) in [("secret\n", "secret"), ("two words\r\nx", "two words"), ("", "")]
        {
            assert_eq!(*line(typed.as_bytes()).unwrap(), password);
        }
    }

    #[test]
    fn keys_make_a_password() {
        for (keys, password) in [
            ("secret\r", Some("secret")),
            ("sex\x7fcret\n", Some("secret")),
            ("nö\x7fo\n", Some("no")),
            ("\x7f\x7fx\n", Some("x")),
            ("wrong\x15right\n", Some("right")),
            ("half\x03\n", None),
            ("half", None),
        ] {
            let typed = typed(keys.as_bytes()).unwrap();
            assert_eq!(typed.as_ref().map(|text| text.as_str()), password, "{keys:?}");
        }
        assert!(typed(&[b'x'; PASSWORD_MAX + 1][..]).is_err());
        assert!(typed(&b"\xff\n"[..]).is_err());
    }
}
