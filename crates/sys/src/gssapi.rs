//! Who is it? Kerberos, through the system's GSSAPI (RFC 2743, RFC 2744, RFC 4121), as a server uses it.
//!
//! The library is MIT Kerberos' `libgssapi_krb5`; it is loaded when it is asked for ([`Library::load`]). A
//! [`Credential`] is the keys of a keytab, with which a [`Context`] takes the tokens of one client. The library reads
//! files and may ask name services: its calls block. It keeps its own locks, so that many threads may call it.
//!
//! What is needed: package `libgssapi-krb5-2` (Debian, Ubuntu) or `krb5-libs` (Fedora, RHEL), a keytab with a key of
//! `cifs/HOST@REALM` that we may read, and a realm that `/etc/krb5.conf` (or `KRB5_CONFIG`) or DNS knows.

mod raw;

use std::ffi::{CString, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use raw::{Bytes, Oid, Symbols};

use crate::library::{self, Needs};

pub use crate::library::LoadError;

/// Kerberos 5: 1.2.840.113554.1.2.2.
static KERBEROS: Shared = Shared(Oid::new(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"));
/// GSS_C_INQ_SSPI_SESSION_KEY, by which the key is asked for that both ends have: 1.2.840.113554.1.2.2.5.5.
static SESSION_KEY: Shared = Shared(Oid::new(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x05\x05"));

/// Lines that one status is told in, at most.
const LINES: usize = 8;
/// Bytes of a session key, at most: the largest that Kerberos has takes 32.
const KEY_MAX: usize = 64;

/// An identifier that all threads may read.
struct Shared(Oid);

// SAFETY: it points to bytes that are constant.
unsafe impl Sync for Shared {}

/// Who has no GSSAPI gets it so.
const NEEDS: Needs = Needs {
    packages: "libgssapi-krb5-2 (Debian, Ubuntu) or krb5-libs (Fedora, RHEL)",
    version: "MIT Kerberos 1.11",
};

/// What the library says when it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The status of GSSAPI (RFC 2744 3.9.1).
    pub major: u32,
    /// The status of the mechanism.
    pub minor: u32,
    /// Both in words.
    pub words: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Failure {}

/// MIT Kerberos' GSSAPI in this process. It is never unloaded.
#[derive(Clone)]
pub struct Library {
    symbols: Arc<Symbols>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// The name that the linker looks for.
    pub const NAME: &'static str = "libgssapi_krb5.so.2";

    /// Loads the system's.
    ///
    /// # Errors
    ///
    /// [`LoadError`] says what to install.
    pub fn load() -> Result<Self, LoadError> {
        Self::load_from(Self::NAME)
    }

    /// Loads the one of that name: a path, or what the linker looks for in its directories. It is trusted
    /// as is whatever this program is linked with: a setting of who runs it, never of a peer.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn load_from(name: &str) -> Result<Self, LoadError> {
        let symbols = library::load(name, &NEEDS, Symbols::find)?;
        Ok(Self { symbols: Arc::new(symbols) })
    }

    /// Turns a status into a result.
    fn check(&self, major: u32, minor: u32) -> Result<(), Failure> {
        if major & raw::FAILED == 0 {
            return Ok(());
        }
        let mut words = self.status(major, raw::GSS_CODE);
        if minor != 0 {
            let more = self.status(minor, raw::MECHANISM_CODE);
            words = format!("{words}: {more}");
        }
        Err(Failure { major, minor, words })
    }

    /// What a status means.
    fn status(&self, code: u32, kind: c_int) -> String {
        let (mut lines, mut next) = (Vec::new(), 0);
        for _ in 0..LINES {
            let mut minor = 0;
            let mut line = Owned::new(self);
            // SAFETY: all pointers are to what lives here; `line` is empty, and is released when it goes.
            let major = unsafe {
                (self.symbols.display_status)(
                    &raw mut minor,
                    code,
                    kind,
                    &raw const KERBEROS.0,
                    &raw mut next,
                    &raw mut line.bytes,
                )
            };
            if major & raw::FAILED != 0 {
                break;
            }
            lines.push(String::from_utf8_lossy(line.as_slice()).into_owned());
            if next == 0 {
                break;
            }
        }
        if lines.is_empty() { format!("status {code:#x}") } else { lines.join(", ") }
    }
}

/// Bytes that the library has allocated.
struct Owned<'l> {
    library: &'l Library,
    bytes: Bytes,
}

impl<'l> Owned<'l> {
    fn new(library: &'l Library) -> Self {
        Self { library, bytes: Bytes::EMPTY }
    }

    fn as_slice(&self) -> &[u8] {
        if self.bytes.value.is_null() {
            return &[];
        }
        // SAFETY: the library has written so many bytes there, and they stay until they are released, which takes
        // this value.
        unsafe { std::slice::from_raw_parts(self.bytes.value.cast(), self.bytes.length) }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: empty, or as the library has filled it, and nobody else's.
        unsafe { (self.library.symbols.release_buffer)(&raw mut minor, &raw mut self.bytes) };
    }
}

/// Bytes of ours, to be read.
fn borrowed(bytes: &[u8]) -> Bytes {
    Bytes { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// The keys of a keytab, with which clients are accepted.
pub struct Credential {
    library: Library,
    raw: NonNull<raw::Credential>,
}

// SAFETY: a credential is not changed after it was made but under the library's own lock (MIT Kerberos is safe for
// threads), and may be released by any thread.
unsafe impl Send for Credential {}
// SAFETY: as above.
unsafe impl Sync for Credential {}

impl Credential {
    /// All keys of this file. It is read anew for each client, so keys may be exchanged while it is in use.
    ///
    /// # Errors
    ///
    /// [`Failure`]: no such file, one that we may not read, or one without keys.
    pub fn from_keytab(library: &Library, keytab: &Path) -> Result<Self, Failure> {
        let unfit = |words: &str| Failure { major: 0, minor: 0, words: words.to_owned() };
        let mut value = b"FILE:".to_vec();
        value.extend_from_slice(keytab.as_os_str().as_bytes());
        let value = CString::new(value).map_err(|_| unfit("a path with a zero in it"))?;
        let pair = raw::Pair { key: c"keytab".as_ptr(), value: value.as_ptr() };
        let store = raw::Pairs { count: 1, elements: &raw const pair };
        let mechanisms = raw::OidSet { count: 1, elements: &raw const KERBEROS.0 };
        let (mut minor, mut credential) = (0, ptr::null_mut());
        // SAFETY: all pointers are to what lives here, or null where the library takes that for "not wanted".
        let major = unsafe {
            (library.symbols.acquire_cred_from)(
                &raw mut minor,
                ptr::null_mut(),
                raw::INDEFINITE,
                &raw const mechanisms,
                raw::ACCEPT,
                &raw const store,
                &raw mut credential,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        library.check(major, minor)?;
        let raw = NonNull::new(credential).ok_or_else(|| unfit("no credential"))?;
        Ok(Self { library: library.clone(), raw })
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        let (mut minor, mut raw) = (0, self.raw.as_ptr());
        // SAFETY: ours alone: contexts that use it hold it.
        unsafe { (self.library.symbols.release_cred)(&raw mut minor, &raw mut raw) };
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

/// What to say to a client's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// To be sent, if it is not empty.
    pub token: Vec<u8>,
    /// Whether that was all.
    pub done: bool,
}

/// One client that says who it is.
pub struct Context {
    credential: Arc<Credential>,
    raw: *mut raw::Context,
    client: *mut raw::Name,
    flags: u32,
    lifetime: u32,
    done: bool,
}

// SAFETY: nothing of it belongs to a thread; it is used by who has it alone.
unsafe impl Send for Context {}

impl Context {
    /// Waits for the client's first token.
    #[must_use]
    pub fn new(credential: Arc<Credential>) -> Self {
        let (raw, client) = (ptr::null_mut(), ptr::null_mut());
        Self { credential, raw, client, flags: 0, lifetime: 0, done: false }
    }

    fn library(&self) -> &Library {
        &self.credential.library
    }

    /// Takes the client's next token (`gss_accept_sec_context`). Blocks: the library reads the keytab, and remembers
    /// what it has seen in a file so that nobody sends it again.
    ///
    /// # Errors
    ///
    /// [`Failure`]: the client is not whom it says, or does not know us, or says it too late. No more tokens then.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, Failure> {
        let library = self.credential.library.clone();
        if self.done {
            let words = "one token too many".to_owned();
            return Err(Failure { major: 0, minor: 0, words });
        }
        let input = borrowed(token);
        let mut output = Owned::new(&library);
        let mut minor = 0;
        self.release_client();
        // SAFETY: all pointers are to what lives here, or null where the library takes that for "not wanted". The
        // credential is held by `self`. The context is null or the one of the step before, of which the library
        // makes what it is now; it is null again if that has failed.
        let major = unsafe {
            (library.symbols.accept_sec_context)(
                &raw mut minor,
                &raw mut self.raw,
                self.credential.raw.as_ptr(),
                &raw const input,
                ptr::null(),
                &raw mut self.client,
                ptr::null_mut(),
                &raw mut output.bytes,
                &raw mut self.flags,
                &raw mut self.lifetime,
                ptr::null_mut(),
            )
        };
        self.done = major & raw::CONTINUE_NEEDED == 0;
        library.check(major, minor)?;
        Ok(Step { token: output.as_slice().to_vec(), done: self.done })
    }

    /// Asks for something about the client's name.
    fn name(
        &self,
        ask: impl FnOnce(&Symbols, *mut u32, *mut raw::Name, *mut Bytes) -> u32,
    ) -> Result<String, Failure> {
        let mut name = Owned::new(self.library());
        let mut minor = 0;
        let major = ask(&self.library().symbols, &raw mut minor, self.client, &raw mut name.bytes);
        self.library().check(major, minor)?;
        Ok(String::from_utf8_lossy(name.as_slice()).into_owned())
    }

    /// The client's principal: `ann@EXAMPLE.COM`.
    ///
    /// # Errors
    ///
    /// [`Failure`] before the last step.
    pub fn principal(&self) -> Result<String, Failure> {
        self.name(|symbols, minor, client, name| {
            // SAFETY: `name` has an empty buffer and `client` is null, which fails, or what the library has given us.
            unsafe { (symbols.display_name)(minor, client, name, ptr::null_mut()) }
        })
    }

    /// The user of this host that the principal is (`gss_localname`): by the rules of `krb5.conf`, which without more
    /// are that a principal of the default realm without a slash is the user of that name.
    ///
    /// # Errors
    ///
    /// [`Failure`]: nobody of this host, or before the last step.
    pub fn local_name(&self) -> Result<String, Failure> {
        self.name(|symbols, minor, client, name| {
            // SAFETY: as in `principal`.
            unsafe { (symbols.localname)(minor, client, &raw const KERBEROS.0, name) }
        })
    }

    /// Whether the client does not say who it is.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.flags & raw::ANONYMOUS != 0
    }

    /// Whether the client hears that it is we.
    #[must_use]
    pub fn is_mutual(&self) -> bool {
        self.flags & raw::MUTUAL != 0
    }

    /// For how long from the last step on; `None`: without end.
    #[must_use]
    pub fn lifetime(&self) -> Option<Duration> {
        (self.lifetime != raw::INDEFINITE).then(|| Duration::from_secs(self.lifetime.into()))
    }

    /// Hands `take` the key that both ends have, of 16 bytes to 32 in what Kerberos has today. It is wiped then.
    ///
    /// # Errors
    ///
    /// [`Failure`]: before the last step, or there is none.
    pub fn session_key<T>(&self, take: impl FnOnce(&[u8]) -> T) -> Result<T, Failure> {
        let library = self.library();
        let (mut minor, mut set) = (0, ptr::null_mut());
        // SAFETY: pointers to what lives here; a context that is null fails.
        let major = unsafe {
            (library.symbols.inquire_sec_context_by_oid)(
                &raw mut minor,
                self.raw,
                &raw const SESSION_KEY.0,
                &raw mut set,
            )
        };
        library.check(major, minor)?;
        // SAFETY: the library has made it, and nobody else has it.
        let first = unsafe { set.as_mut() }.filter(|set| set.count > 0 && !set.elements.is_null());
        // SAFETY: as above; there is a first.
        let first = first.map(|set| unsafe { &mut *set.elements });
        let key = first.filter(|key| (1..=KEY_MAX).contains(&key.length) && !key.value.is_null());
        let taken = key.map(|key| {
            // SAFETY: so many bytes, as above.
            let bytes = unsafe { std::slice::from_raw_parts_mut(key.value.cast(), key.length) };
            let taken = take(bytes);
            bytes.fill(0);
            taken
        });
        // SAFETY: what was given above; it is null afterwards.
        unsafe { (library.symbols.release_buffer_set)(&raw mut minor, &raw mut set) };
        taken.ok_or_else(|| Failure { major: 0, minor: 0, words: "no session key".into() })
    }

    /// Signs a message (`gss_get_mic`).
    ///
    /// # Errors
    ///
    /// [`Failure`]: before the last step.
    pub fn sign(&mut self, message: &[u8]) -> Result<Vec<u8>, Failure> {
        let message = borrowed(message);
        let mut mic = Owned::new(self.library());
        let mut minor = 0;
        // SAFETY: pointers to what lives here; a context that is null fails.
        let major = unsafe {
            (self.library().symbols.get_mic)(
                &raw mut minor,
                self.raw,
                0,
                &raw const message,
                &raw mut mic.bytes,
            )
        };
        self.library().check(major, minor)?;
        Ok(mic.as_slice().to_vec())
    }

    /// Whether the client has signed this message so (`gss_verify_mic`).
    pub fn verify(&mut self, message: &[u8], mic: &[u8]) -> bool {
        let (message, mic) = (borrowed(message), borrowed(mic));
        let mut minor = 0;
        // SAFETY: as in `sign`.
        let major = unsafe {
            (self.library().symbols.verify_mic)(
                &raw mut minor,
                self.raw,
                &raw const message,
                &raw const mic,
                ptr::null_mut(),
            )
        };
        // What is old, sent twice or out of turn counts as wrong, too: one message is signed once.
        major == 0
    }

    fn release_client(&mut self) {
        let mut minor = 0;
        if !self.client.is_null() {
            let library = &self.credential.library;
            // SAFETY: what the library has given us; it is null afterwards.
            unsafe { (library.symbols.release_name)(&raw mut minor, &raw mut self.client) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.release_client();
        let mut minor = 0;
        if !self.raw.is_null() {
            let library = &self.credential.library;
            // SAFETY: what the library has given us; it is null afterwards.
            unsafe {
                (library.symbols.delete_sec_context)(
                    &raw mut minor,
                    &raw mut self.raw,
                    ptr::null_mut(),
                );
            }
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("done", &self.done).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let error = Library::load_from("libgssapi_nowhere.so.2").unwrap_err().to_string();
        assert!(
            error.contains("libgssapi_nowhere.so.2") && error.contains("libgssapi-krb5-2"),
            "{error}"
        );
        let error = Library::load_from("libc.so.6").unwrap_err().to_string();
        assert!(error.contains("gss_acquire_cred_from"), "{error}");
        assert!(Library::load_from("a\0b").is_err());
    }

    #[test]
    fn what_is_wrong_is_said_in_words() {
        let library = match Library::load() {
            Ok(library) => library,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        let failed =
            Credential::from_keytab(&library, Path::new("/nonexistent/keytab")).unwrap_err();
        assert!(failed.words.contains("/nonexistent/keytab"), "{failed}");
        assert!(Credential::from_keytab(&library, Path::new("/nonexistent\0/keytab")).is_err());
    }
}
