//! Libraries of the system that are found at run time: a program that was built with this runs without them.

use std::ffi::{CStr, CString, c_void};
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

/// Loads the library of that name: a path, or what the linker looks for in its directories. It is never unloaded.
/// It is trusted as is whatever this program is linked with: its name is a setting of who runs it, never of a peer.
///
/// # Errors
///
/// What the linker says.
pub(crate) fn open(name: &str) -> Result<NonNull<c_void>, String> {
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
