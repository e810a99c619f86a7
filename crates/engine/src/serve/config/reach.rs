//! Whether anybody could be served: who may log on may be kept out by another setting.

use smb::FileTime;
use smb::auth::UserFile;

use super::{Config, Demand, ShareConfig};

/// Why nobody could be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Nobody may log on.
    #[error(
        "nobody could log on: {0}. Make a user with `shunt serve user add NAME`, or let everybody in with --guest"
    )]
    Users(&'static str),
    /// Those who may are guests, who are kept out.
    #[error(
        "nobody could log on: there are no users but guests, who have no key to sign or encrypt with, and {0} keeps them \
         out. Make a user with `shunt serve user add NAME`, or leave {0} out"
    )]
    Guests(&'static str),
    /// Nobody of those may use a share.
    #[error("nobody could use a share: {0}")]
    Shares(String),
}

/// Who may log on.
struct Callers<'u> {
    named: Vec<&'u str>,
    /// Anybody of a realm.
    realm: bool,
    guests: bool,
}

impl Config {
    /// Whether somebody may log on, and use one of [`Self::shares`]. What is let in by one setting and kept out by another,
    /// while others are served, is told in words.
    ///
    /// # Errors
    ///
    /// [`Unreachable`].
    pub fn reach(&self, users: &UserFile, now: FileTime) -> Result<Vec<String>, Unreachable> {
        // MS-SMB2 3.3.5.5.3: what has no session key cannot be signed.
        let keeps_guests_out = match (self.signing, self.encryption) {
            (_, Demand::Required) => Some("encryption = required"),
            (Demand::Required, _) => Some("signing = required"),
            _ => None,
        };
        let by_tickets = self.keytab.is_some();
        let may = |user: &&smb::auth::User| {
            let is_over = user.expires.is_some_and(|end| now >= end);
            !user.disabled && !is_over && (user.nt_hash.is_some() || by_tickets)
        };
        let callers = Callers {
            named: users.iter().filter(may).map(|user| &*user.name).collect(),
            realm: self.realm_users && by_tickets,
            guests: self.guest && keeps_guests_out.is_none(),
        };
        if callers.named.is_empty() && !callers.realm && !callers.guests {
            return Err(match keeps_guests_out.filter(|_| self.guest) {
                Some(by) => Unreachable::Guests(by),
                None => Unreachable::Users(match users.is_empty() {
                    true => "there are no users, and no guests",
                    false => {
                        "no user may: each is disabled, or past the end of his time, or has no password and there is no \
                         keytab; and there are no guests"
                    }
                }),
            });
        }
        let mut told = Vec::new();
        if let Some(by) = keeps_guests_out.filter(|_| self.guest) {
            told.push(format!(
                "guests are kept out, who have no key to sign or encrypt with: {by} goes before guest = on"
            ));
        }
        let closed: Vec<String> =
            self.shares.iter().filter_map(|s| self.lonely(s, &callers)).collect();
        if !closed.is_empty() && closed.len() == self.shares.len() {
            return Err(Unreachable::Shares(closed.join("; ")));
        }
        told.extend(closed);
        Ok(told)
    }

    /// Why nobody gets into a share.
    fn lonely(&self, share: &ShareConfig, callers: &Callers<'_>) -> Option<String> {
        let name = &share.name;
        if share.encrypted && self.encryption == Demand::Off {
            return Some(format!(
                "share {name} is for those who encrypt, and encryption = off keeps all from that"
            ));
        }
        let named = callers.named.iter().any(|user| share.admits(user, false));
        let guests = callers.guests && !share.encrypted && share.admits("", true);
        if named || callers.realm || guests {
            return None;
        }
        Some(match share.users.is_empty() {
            true => format!(
                "share {name} lets no guests in (guest, encrypt), and nobody else may log on"
            ),
            false => format!(
                "share {name} is for {} alone (users), of whom nobody may log on",
                share.users.join(", ")
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "a4f49c406510bdcab6824ee7c30fd852";

    type Settings = &'static [(&'static str, &'static str)];

    const GUEST: (&str, &str) = ("guest", "on");

    fn users(text: &str) -> UserFile {
        UserFile::parse(&text.replace("HASH", HASH)).unwrap()
    }

    /// What becomes of a server with these settings, shares and users.
    fn reach(
        settings: &[(&str, &str)],
        shares: &[&str],
        file: &str,
    ) -> Result<Vec<String>, String> {
        let mut config = Config::default();
        for (name, value) in settings {
            config.set(name, value).unwrap();
        }
        config.shares = shares.iter().map(|text| ShareConfig::parse(text).unwrap()).collect();
        let now = FileTime::from_unix(1_800_000_000, 0);
        config.reach(&users(file), now).map_err(|bad| bad.to_string())
    }

    #[test]
    fn nobody_to_serve_is_an_error_that_says_what_keeps_them_out() {
        let cases: &[(Settings, &str, &str, &str)] = &[
            (&[], "a=/", "", "there are no users, and no guests"),
            (&[GUEST, ("signing", "required")], "a=/", "", "signing = required keeps them out"),
            (&[GUEST, ("encryption", "required")], "a=/", "", "encryption = required keeps"),
            (&[("anonymous", "on")], "a=/", "", "there are no users"),
            (&[], "a=/", "ann:*:HASH:disabled:\n", "no user may"),
            (&[], "a=/", "ann:*:HASH:expires=2020-01-01:\n", "no user may"),
            (&[], "a=/", "ann:*:*::\n", "no password and there is no keytab"),
            (&[("keytab", "/k")], "a=/", "", "there are no users"),
            (&[], "a=/,users=bob", "ann:*:HASH::\n", "share a is for bob alone"),
            (&[GUEST], "a=/,guest=off", "", "share a lets no guests in"),
            (&[GUEST], "a=/,encrypt", "", "share a lets no guests in"),
            (&[("encryption", "off")], "a=/,encrypt", "ann:*:HASH::\n", "encryption = off keeps"),
        ];
        for (settings, share, file, words) in cases {
            let told = reach(settings, &[share], file).unwrap_err();
            assert!(told.contains(words), "{settings:?} {share}: {told}");
        }
    }

    #[test]
    fn who_is_kept_out_while_others_are_served_is_told() {
        let ann = "ann:*:HASH::\n";
        let served: &[(Settings, &[&str], &str, &[&str])] = &[
            (&[], &["a=/"], ann, &[]),
            (&[("guest", "on")], &["a=/"], "", &[]),
            (&[("keytab", "/k"), ("realm_users", "on")], &["a=/,users=bob"], "", &[]),
            (&[("keytab", "/k")], &["a=/"], "ann:*:*::\n", &[]),
            (&[("guest", "on"), ("signing", "required")], &["a=/"], ann, &["guests are kept out"]),
            (&[], &["a=/", "b=/,users=Bob"], ann, &["share b is for Bob alone"]),
            (&[], &["a=/", "b=/,users=ANN"], ann, &[]),
        ];
        for (settings, shares, file, words) in served {
            let told = reach(settings, shares, file).unwrap();
            assert_eq!(told.len(), words.len(), "{settings:?}: {told:?}");
            assert!(told.iter().zip(*words).all(|(told, word)| told.contains(word)), "{told:?}");
        }
    }
}
