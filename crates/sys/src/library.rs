//! Libraries of the system that are found at run time: a program that was built with this runs without them.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr::NonNull;

/// Declares the functions that we call, and finds them.
macro_rules! symbols {
    ($($field:ident: fn($($arg:ty),*) $(-> $ret:ty)?, $name:literal, $version:literal;)*) => {
        /// The functions of the library.
        pub(super) struct Symbols {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Symbols {
            pub(super) fn find(
                handle: std::ptr::NonNull<std::ffi::c_void>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let at = $crate::library::find(handle, $name, $version)
                            .ok_or(concat!($name, "@", $version))?;
                        // SAFETY: a function of this name and version has had this type since the
                        // version exists, and has it for as long as the library has its name.
                        unsafe {
                            std::mem::transmute::<
                                std::ptr::NonNull<std::ffi::c_void>,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(at)
                        }
                    },)*
                })
            }
        }
    };
}
pub(crate) use symbols;

/// Why there is no such library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// None of that name, or one that cannot be loaded.
    Absent {
        /// What was looked for.
        name: String,
        /// What the dynamic linker says.
        reason: String,
        /// The packages that bring it.
        packages: &'static str,
    },
    /// It lacks a function: it is another library, or too old.
    Lacks {
        /// What was loaded.
        name: String,
        /// The function that is not in it, with its version.
        symbol: String,
        /// What has it.
        needed: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { name, reason, packages } => {
                write!(f, "{name} cannot be loaded ({reason}): install {packages}")
            }
            Self::Lacks { name, symbol, needed } => {
                write!(f, "{name} has no {symbol}: {needed} or later is needed")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// What people are told who do not have a library.
pub(crate) struct Needs {
    /// The packages that bring it, on systems of each kind.
    pub(crate) packages: &'static str,
    /// The first version that has all that we call.
    pub(crate) version: &'static str,
}

/// Loads the library of that name, and has its functions found: what `find` answers if they are all there, or the
/// first that is not.
///
/// # Errors
///
/// [`LoadError`].
pub(crate) fn load<S>(
    name: &str,
    needs: &Needs,
    find: impl FnOnce(NonNull<c_void>) -> Result<S, &'static str>,
) -> Result<S, LoadError> {
    let (packages, needed) = (needs.packages, needs.version);
    let handle = open(name);
    let handle =
        handle.map_err(|reason| LoadError::Absent { name: name.to_owned(), reason, packages })?;
    find(handle).map_err(|symbol| LoadError::Lacks {
        name: name.to_owned(),
        symbol: symbol.to_owned(),
        needed,
    })
}

/// Loads the library of that name: a path, or what the linker looks for in its directories. It is never unloaded.
/// It is trusted as is whatever this program is linked with: its name is a setting of who runs it, never of a peer.
///
/// # Errors
///
/// What the linker says.
fn open(name: &str) -> Result<NonNull<c_void>, String> {
    let path = CString::new(name).map_err(|e| e.to_string())?;
    // All functions are bound now rather than in the middle of a connection, and stay out of the way
    // of others of the same names.
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
    // SAFETY: a string that ends with a zero. What the library does while it is loaded is what the
    // caller trusts it with.
    NonNull::new(unsafe { libc::dlopen(path.as_ptr(), flags) }).ok_or_else(linker_error)
}

/// A function of a library that [`open`] has loaded, of that version.
pub(crate) fn find(handle: NonNull<c_void>, name: &str, version: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    let version = CString::new(version).ok()?;
    // SAFETY: a handle of `dlopen` that is never closed, and two strings that end with a zero.
    NonNull::new(unsafe { libc::dlvsym(handle.as_ptr(), name.as_ptr(), version.as_ptr()) })
}

/// What the dynamic linker last complained of in this thread.
fn linker_error() -> String {
    // SAFETY: always callable; the answer is good until this thread's next call of the linker.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: `dlerror` answers null or a string that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
