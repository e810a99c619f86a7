//! Samba's server beside ours: set up in a directory, for one run, and gone with it.
//!
//! smbd wants its users to be users of the system. It gets a mount namespace in which `/etc/passwd`
//! and `/etc/group` are copies that have them, so nothing is left on the machine. That takes root.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::unistd::geteuid;

use crate::bench::stage::Running;
use crate::install::find;

/// The users that both servers know, and the password of each.
pub(crate) const USERS: [&str; 2] = ["smbtest", "smbtest2"];
/// The password of [`USERS`].
pub(crate) const PASSWORD: &str = "pw";

/// A folder that is served.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Lines of its section.
    pub(crate) settings: Vec<&'static str>,
}

/// A running smbd.
pub(crate) struct Smbd {
    /// smbd itself: all of its processes are below it.
    pub(crate) running: Running,
}

/// As `docs/torture/samba.tsv` and the benchmarks have it: large messages, channels on loopback, no
/// printers, nothing outside its directory.
const GLOBAL: &str = "\
netbios name = SHUNTPEER
workgroup = WORKGROUP
server role = standalone server
interfaces = \"lo;capability=RSS,speed=10000000000\"
bind interfaces only = yes
disable netbios = yes
log level = 0
passdb backend = tdbsam
map to guest = Bad User
guest account = nobody
server multi channel support = yes
server min protocol = SMB2_10
load printers = no
printing = bsd
printcap name = /dev/null
disable spoolss = yes
unix extensions = no
smb2 max read = 8388608
smb2 max write = 8388608
smb2 max trans = 8388608
";

/// $1 is the directory; what follows are names of users.
const SCRIPT: &str = r#"
dir=$1
shift
cp /etc/passwd "$dir/passwd"
cp /etc/group "$dir/group"
id=64100
for user in "$@"; do
    if ! grep -q "^$user:" "$dir/passwd"; then
        echo "$user:x:$id:$id::/nonexistent:/usr/sbin/nologin" >>"$dir/passwd"
        echo "$user:x:$id:" >>"$dir/group"
    fi
    id=$((id + 1))
done
mount --bind "$dir/passwd" /etc/passwd
mount --bind "$dir/group" /etc/group
for user in "$@"; do
    printf '%s\n%s\n' pw pw | smbpasswd -c "$dir/smb.conf" -s -a "$user"
done
exec smbd --foreground --no-process-group --configfile="$dir/smb.conf"
"#;

/// Why there can be no smbd here, if so.
pub(crate) fn absent() -> Option<String> {
    if !geteuid().is_root() {
        return Some("smbd wants root".into());
    }
    let missing = ["smbd", "smbpasswd", "unshare"].into_iter().find(|name| find(name).is_none());
    missing.map(|name| format!("no {name} here (Debian: samba)"))
}

impl Smbd {
    /// Starts one in `dir`, which must be new, and waits until it listens on `port`. What is typed before it
    /// is `prefix`.
    ///
    /// # Errors
    ///
    /// When it cannot be had here, or does not start.
    pub(crate) fn start(
        prefix: Vec<OsString>,
        dir: &Path,
        port: u16,
        settings: &[&str],
        shares: &[Share],
    ) -> anyhow::Result<Self> {
        let absent = absent();
        ensure!(absent.is_none(), "{}", absent.unwrap_or_default());
        for folder in ["private", "state", "cache", "lock", "run", "log"] {
            fs::create_dir(dir.join(folder)).with_context(|| format!("cannot create {folder}"))?;
        }
        fs::write(dir.join("smb.conf"), configuration(dir, port, settings, shares)?)?;
        let mut words = prefix;
        words.extend(
            ["unshare", "--mount", "--propagation", "private", "sh", "-euc", SCRIPT, "smbd"]
                .map(OsString::from),
        );
        words.push(dir.into());
        words.extend(USERS.map(OsString::from));
        let mut running = Running::start(&words, dir, &[])?;
        running.wait_for_port(port)?;
        Ok(Self { running })
    }
}

fn configuration(
    dir: &Path,
    port: u16,
    settings: &[&str],
    shares: &[Share],
) -> anyhow::Result<String> {
    let mut text = format!("[global]\n{GLOBAL}smb ports = {port}\n");
    let here = dir.display();
    for (what, folder) in [
        ("private dir", "private"),
        ("state directory", "state"),
        ("cache directory", "cache"),
        ("lock directory", "lock"),
        ("pid directory", "run"),
        ("ncalrpc dir", "run/ncalrpc"),
        ("log file", "log/log.%m"),
    ] {
        writeln!(text, "{what} = {here}/{folder}")?;
    }
    settings.iter().try_for_each(|line| writeln!(text, "{line}"))?;
    for share in shares {
        writeln!(text, "[{}]\npath = {}", share.name, share.path.display())?;
        writeln!(text, "read only = no\nguest ok = yes")?;
        share.settings.iter().try_for_each(|line| writeln!(text, "{line}"))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_smbd_writes_is_below_its_directory() {
        let share = Share {
            name: "tmp".into(),
            path: "/x/tmp".into(),
            settings: vec!["kernel oplocks = yes"],
        };
        let text = configuration(Path::new("/x"), 1445, &["log level = 1"], &[share]).unwrap();
        for line in text.lines().filter(|line| line.contains("director") || line.contains(" dir "))
        {
            assert!(line.contains("= /x/"), "{line}");
        }
        assert!(text.contains("[tmp]\npath = /x/tmp\n"));
        assert!(text.ends_with("kernel oplocks = yes\n"));
    }

    #[test]
    fn the_script_is_a_script() {
        let status = std::process::Command::new("sh").args(["-nuc", SCRIPT]).status().unwrap();
        assert!(status.success());
    }
}
