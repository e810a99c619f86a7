//! A share as people write it: `NAME=PATH[,OPTION]...`, or a table of the configuration file.

use std::path::PathBuf;

use super::super::fs::{self, Links};
use super::settings::{self, Setting};

/// A share to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareConfig {
    /// Name by which clients connect to it.
    pub name: String,
    /// The folder.
    pub path: PathBuf,
    /// What lists of shares say of it.
    pub comment: String,
    /// Whether nobody may change anything.
    pub read_only: bool,
    /// Whether only clients that encrypt get in, and all that is said about it must be encrypted.
    pub encrypted: bool,
    /// Whether guests get in, where the server lets them in at all.
    pub guest: bool,
    /// Who else but nobody gets in, by name whatever its case; empty: everybody who may log on.
    pub users: Vec<String>,
    /// `a` and `A` are two files.
    pub case_sensitive: bool,
    /// What becomes of symbolic links on disk.
    pub links: Links,
    /// Names that begin with a full stop are hidden.
    pub hide_dot_files: bool,
    /// Names that Windows reserves for devices are shown with a mark, so that its programs can open them.
    pub map_devices: bool,
    /// Permission bits that a new file may have; the process's umask counts too.
    pub file_mode: u32,
    /// Permission bits that a new folder may have; the process's umask counts too.
    pub folder_mode: u32,
    /// Named streams are offered.
    pub streams: bool,
    /// DOS attributes and creation times are kept.
    pub dos_attributes: bool,
}

/// Each option of a share.
pub const SHARE_OPTIONS: &[Setting] = &[
    Setting {
        name: "comment",
        value: "TEXT",
        help: "what lists of shares say of it, 256 letters at most []",
    },
    Setting { name: "ro", value: "on|off", help: "nobody may change anything [off]" },
    Setting {
        name: "encrypt",
        value: "on|off",
        help: "only for those who encrypt, SMB 3.0 and later [off]",
    },
    Setting {
        name: "guest",
        value: "on|off",
        help: "guests get in, where the server has guests at all [on]",
    },
    Setting {
        name: "users",
        value: "NAME[+NAME]...",
        help: "only these get in, of those who may log on [everybody]",
    },
    Setting {
        name: "links",
        value: "follow|refuse|client",
        help: "symbolic links on disk: follow those that stay inside the share, refuse paths that have one, \
               or tell the client, who may follow it itself [follow]",
    },
    Setting {
        name: "hide_dot_files",
        value: "on|off",
        help: "names that begin with a full stop have the attribute HIDDEN [on]",
    },
    Setting {
        name: "map_devices",
        value: "on|off",
        help: "names that Windows reserves for devices (CON, NUL, COM1) are shown with U+F02A behind them, so that \
               Windows programs can open them; clients may name them with it or without [off]",
    },
    Setting {
        name: "case_sensitive",
        value: "on|off",
        help: "a and A are two files; macOS and Windows do not expect that [off]",
    },
    Setting {
        name: "file_mode",
        value: "OCTAL",
        help: "permission bits that a new file may have, 0 to 777; the umask counts too [664]",
    },
    Setting {
        name: "folder_mode",
        value: "OCTAL",
        help: "permission bits that a new folder may have, 0 to 777; the umask counts too [775]",
    },
    Setting {
        name: "streams",
        value: "on|off",
        help: "named streams, kept in extended attributes [on]",
    },
    Setting {
        name: "dos_attributes",
        value: "on|off",
        help: "DOS attributes and creation times, kept in the extended attribute user.DOSATTRIB [on]",
    },
];

/// A share that cannot be, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("share {share}: {why}")]
pub struct BadShare {
    /// What was written.
    pub share: String,
    /// What would be right.
    pub why: String,
}

/// Letters of a share's name, at most: what old clients can show (MS-FSCC 2.1.6).
const NAME_MAX: usize = 80;
/// Letters of a comment, at most: Windows' MAXCOMMENTSZ.
const COMMENT_MAX: usize = 256;

impl ShareConfig {
    /// A share with the usual options.
    #[must_use]
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        let (name, path) = (name.into(), path.into());
        let usual = fs::Config::new(&path, &name);
        Self {
            name,
            path,
            comment: String::new(),
            read_only: usual.read_only,
            encrypted: false,
            guest: true,
            users: Vec::new(),
            case_sensitive: usual.case_sensitive,
            links: usual.links,
            hide_dot_files: usual.hide_dot_files,
            map_devices: usual.map_devices,
            file_mode: usual.file_mode,
            folder_mode: usual.folder_mode,
            streams: usual.streams,
            dos_attributes: usual.dos_attributes,
        }
    }

    /// As one word: `NAME=PATH[,OPTION]...`, where an option is one of [`SHARE_OPTIONS`], alone for on, or
    /// with `=` and its value. Commas of the path are the path's: options are taken from the end for as long as
    /// they are known.
    ///
    /// # Errors
    ///
    /// [`BadShare`].
    pub fn parse(text: &str) -> Result<Self, BadShare> {
        let bad = |why: &str| BadShare { share: text.to_owned(), why: why.to_owned() };
        let (name, mut path) = text.split_once('=').ok_or_else(|| bad("say NAME=PATH"))?;
        let mut options = Vec::new();
        while let Some((before, last)) = path.rsplit_once(',') {
            let (option, value) = last.split_once('=').unwrap_or((last, "on"));
            let option = option.replace('-', "_");
            if !SHARE_OPTIONS.iter().any(|known| known.name == option) {
                break;
            }
            options.push((option, value));
            path = before;
        }
        let mut share = Self::new(name, path);
        for (option, value) in options.iter().rev() {
            share.set(option, value)?;
        }
        share.checked()
    }

    /// Applies an option, or `path`.
    ///
    /// # Errors
    ///
    /// [`BadShare`] says what would be right; nothing is changed then.
    pub fn set(&mut self, option: &str, value: &str) -> Result<(), BadShare> {
        self.apply(option, value)
            .map_err(|why| BadShare { share: self.name.clone(), why: format!("{option}: {why}") })
    }

    fn apply(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "path" => self.path = value.into(),
            "comment" => {
                if value.chars().count() > COMMENT_MAX || value.chars().any(char::is_control) {
                    return Err(format!("one line of at most {COMMENT_MAX} letters"));
                }
                value.clone_into(&mut self.comment);
            }
            "ro" => self.read_only = settings::switch(value)?,
            "encrypt" => self.encrypted = settings::switch(value)?,
            "guest" => self.guest = settings::switch(value)?,
            "users" => {
                let names = value.split(['+', ',']).map(str::trim);
                self.users = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
                if self.users.is_empty() {
                    return Err("the names of users".into());
                }
            }
            "links" => {
                self.links = match value {
                    "follow" => Links::Follow,
                    "refuse" => Links::Refuse,
                    "client" => Links::Client,
                    _ => return Err("follow, refuse or client".into()),
                }
            }
            "hide_dot_files" => self.hide_dot_files = settings::switch(value)?,
            "map_devices" => self.map_devices = settings::switch(value)?,
            "case_sensitive" => self.case_sensitive = settings::switch(value)?,
            "file_mode" => self.file_mode = mode(value)?,
            "folder_mode" => self.folder_mode = mode(value)?,
            "streams" => self.streams = settings::switch(value)?,
            "dos_attributes" => self.dos_attributes = settings::switch(value)?,
            _ => {
                let names: Vec<&str> = SHARE_OPTIONS.iter().map(|known| known.name).collect();
                return Err(format!("no such option (there are: path, {})", names.join(", ")));
            }
        }
        Ok(())
    }

    /// The option of that name, or `path`, as [`Self::set`] would take it; `None`: it is not set, or there is none.
    #[must_use]
    pub fn show(&self, option: &str) -> Option<String> {
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let text = |text: String| (!text.is_empty()).then_some(text);
        Some(match option {
            "path" => self.path.display().to_string(),
            "comment" => text(self.comment.clone())?,
            "ro" => switch(self.read_only),
            "encrypt" => switch(self.encrypted),
            "guest" => switch(self.guest),
            "users" => text(self.users.join("+"))?,
            "links" => match self.links {
                Links::Follow => "follow",
                Links::Refuse => "refuse",
                Links::Client => "client",
            }
            .to_owned(),
            "hide_dot_files" => switch(self.hide_dot_files),
            "map_devices" => switch(self.map_devices),
            "case_sensitive" => switch(self.case_sensitive),
            "file_mode" => format!("{:03o}", self.file_mode),
            "folder_mode" => format!("{:03o}", self.folder_mode),
            "streams" => switch(self.streams),
            "dos_attributes" => switch(self.dos_attributes),
            _ => return None,
        })
    }

    /// Checks the name and that there is a path. Whether the folder is there is found out when it is opened.
    ///
    /// # Errors
    ///
    /// [`BadShare`].
    pub fn checked(self) -> Result<Self, BadShare> {
        let forbidden = |c: char| c.is_control() || r#""/\[]:;|=,+*?<>"#.contains(c);
        let why = if self.name.is_empty() || self.name.trim() != self.name {
            "a name is missing, or has spaces around it".to_owned()
        } else if self.name.chars().count() > NAME_MAX {
            format!("a name has at most {NAME_MAX} letters")
        } else if let Some(letter) = self.name.chars().find(|c| forbidden(*c)) {
            format!("a name cannot have {letter:?} in it")
        } else if smb::name::same(&self.name, "IPC$") {
            "IPC$ is there already, and not for files".to_owned()
        } else if self.path.as_os_str().is_empty() {
            "a path is missing".to_owned()
        } else {
            return Ok(self);
        };
        Err(BadShare { share: self.name, why })
    }

    /// Whether somebody gets in, who has been let into the server.
    pub(in crate::serve) fn admits(&self, user: &str, guest: bool) -> bool {
        if guest {
            return self.guest && self.users.is_empty();
        }
        self.users.is_empty() || self.users.iter().any(|name| smb::name::same(name, user))
    }

    /// What the folder is opened with.
    pub(in crate::serve) fn files(&self) -> fs::Config {
        fs::Config {
            read_only: self.read_only,
            case_sensitive: self.case_sensitive,
            links: self.links,
            file_mode: self.file_mode,
            folder_mode: self.folder_mode,
            dos_attributes: self.dos_attributes,
            streams: self.streams,
            hide_dot_files: self.hide_dot_files,
            map_devices: self.map_devices,
            ..fs::Config::new(&self.path, &self.name)
        }
    }
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "an octal number, 0 to 777".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_name_a_path_and_options() {
        let cases: &[(&str, ShareConfig)] = &[
            ("a=/x", ShareConfig::new("a", "/x")),
            ("a=/x,ro", ShareConfig { read_only: true, ..ShareConfig::new("a", "/x") }),
            ("a=/x,ro=off", ShareConfig::new("a", "/x")),
            ("a=/x,y", ShareConfig::new("a", "/x,y")),
            ("a=/x,ro,y", ShareConfig::new("a", "/x,ro,y")),
            ("a=/x,y,ro", ShareConfig { read_only: true, ..ShareConfig::new("a", "/x,y") }),
            (
                "a=/x,comment=what it is,ro",
                ShareConfig {
                    comment: "what it is".into(),
                    read_only: true,
                    ..ShareConfig::new("a", "/x")
                },
            ),
            ("a b=/x=y", ShareConfig::new("a b", "/x=y")),
            (
                "a=/x,guest=off,links=refuse,hide-dot-files=no,case_sensitive",
                ShareConfig {
                    guest: false,
                    links: Links::Refuse,
                    hide_dot_files: false,
                    case_sensitive: true,
                    ..ShareConfig::new("a", "/x")
                },
            ),
            (
                "a=/x,users=ann+Bob,file_mode=600,folder_mode=0700",
                ShareConfig {
                    users: vec!["ann".into(), "Bob".into()],
                    file_mode: 0o600,
                    folder_mode: 0o700,
                    ..ShareConfig::new("a", "/x")
                },
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(ShareConfig::parse(text).as_ref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_share_says_why() {
        for (text, why) in [
            ("/x", "say NAME=PATH"),
            ("=/x", "a name is missing"),
            ("a=", "a path is missing"),
            (" a=/x", "spaces around"),
            ("a/b=/x", "cannot have '/'"),
            ("ipc$=/x", "there already"),
            ("a=/x,ro=maybe", "ro: on or off"),
            ("a=/x,links=yes", "follow, refuse or client"),
            ("a=/x,file_mode=888", "an octal number"),
            ("a=/x,file_mode=1777", "an octal number"),
            ("a=/x,users=", "the names of users"),
            ("a=/x,comment=a\nb", "one line"),
        ] {
            let words = ShareConfig::parse(text).unwrap_err().to_string();
            assert!(words.contains(why), "{text}: {words}");
        }
        assert!(ShareConfig::parse(&format!("{}=/x", "n".repeat(81))).is_err());
        let mut share = ShareConfig::new("a", "/x");
        let words = share.set("colour", "red").unwrap_err().to_string();
        assert!(words.contains("case_sensitive"), "{words}");
    }

    #[test]
    fn each_option_can_be_set() {
        for option in SHARE_OPTIONS {
            let value = match option.name {
                "users" => "ann",
                "links" => "client",
                "file_mode" | "folder_mode" => "640",
                // What it is not already.
                "ro" | "encrypt" | "case_sensitive" | "map_devices" => "on",
                _ => "off",
            };
            let mut share = ShareConfig::new("a", "/x");
            share.set(option.name, value).unwrap();
            assert_ne!(share, ShareConfig::new("a", "/x"), "{} has no effect", option.name);
            let mut again = ShareConfig::new("a", "");
            for name in ["path"].into_iter().chain(SHARE_OPTIONS.iter().map(|option| option.name)) {
                if let Some(shown) = share.show(name) {
                    again.set(name, &shown).unwrap();
                }
            }
            assert_eq!(again, share, "{} is not shown", option.name);
        }
    }

    #[test]
    fn who_gets_in() {
        let open = ShareConfig::new("a", "/x");
        assert!(open.admits("ann", false) && open.admits("", true));
        let members = ShareConfig { users: vec!["Ann".into()], ..open.clone() };
        assert!(members.admits("ANN", false) && !members.admits("bob", false));
        assert!(!members.admits("ann", true), "a guest may call itself what it likes");
        let no_guests = ShareConfig { guest: false, ..open };
        assert!(no_guests.admits("ann", false) && !no_guests.admits("", true));
    }
}
