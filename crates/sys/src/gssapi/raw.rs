//! The binary interface of MIT Kerberos' `libgssapi_krb5.so.2`, as far as we use it: RFC 2744, with the extensions
//! of its header `gssapi/gssapi_ext.h`. It cannot change without a new name of the library.

use std::ffi::{c_char, c_int, c_void};

use crate::library::symbols;

/// `gss_cred_id_desc`: only passed around.
#[repr(C)]
pub(super) struct Credential {
    opaque: [u8; 0],
}

/// `gss_ctx_id_desc`: only passed around.
#[repr(C)]
pub(super) struct Context {
    opaque: [u8; 0],
}

/// `gss_name_desc`: only passed around.
#[repr(C)]
pub(super) struct Name {
    opaque: [u8; 0],
}

/// `gss_buffer_desc`.
#[repr(C)]
pub(super) struct Bytes {
    pub(super) length: usize,
    pub(super) value: *mut c_void,
}

impl Bytes {
    pub(super) const EMPTY: Self = Self { length: 0, value: std::ptr::null_mut() };
}

/// `gss_OID_desc`.
#[repr(C)]
pub(super) struct Oid {
    length: u32,
    elements: *const c_void,
}

impl Oid {
    /// The object identifier of which these are the content bytes.
    pub(super) const fn new<const N: usize>(bytes: &'static [u8; N]) -> Self {
        // An identifier of ours has few bytes.
        #[expect(clippy::cast_possible_truncation)]
        Self { length: N as u32, elements: bytes.as_ptr().cast() }
    }
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(super) struct OidSet {
    pub(super) count: usize,
    pub(super) elements: *const Oid,
}

/// `gss_buffer_set_desc`.
#[repr(C)]
pub(super) struct ByteSet {
    pub(super) count: usize,
    pub(super) elements: *mut Bytes,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(super) struct Pair {
    pub(super) key: *const c_char,
    pub(super) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(super) struct Pairs {
    pub(super) count: u32,
    pub(super) elements: *const Pair,
}

/// GSS_C_INDEFINITE: a time that does not end.
pub(super) const INDEFINITE: u32 = u32::MAX;
/// GSS_C_ACCEPT: a credential of a server.
pub(super) const ACCEPT: c_int = 2;
/// GSS_C_GSS_CODE: a status of GSSAPI.
pub(super) const GSS_CODE: c_int = 1;
/// GSS_C_MECH_CODE: a status of the mechanism.
pub(super) const MECHANISM_CODE: c_int = 2;
/// GSS_S_CONTINUE_NEEDED: more tokens are to come.
pub(super) const CONTINUE_NEEDED: u32 = 1;
/// Bits of a status that say that it has failed.
pub(super) const FAILED: u32 = 0xffff_0000;
/// GSS_C_MUTUAL_FLAG: the client hears that it is we.
pub(super) const MUTUAL: u32 = 2;
/// GSS_C_ANON_FLAG: the client does not say who it is.
pub(super) const ANONYMOUS: u32 = 64;

symbols! {
    acquire_cred_from: fn(*mut u32, *mut Name, u32, *const OidSet, c_int, *const Pairs,
        *mut *mut Credential, *mut *mut OidSet, *mut u32) -> u32,
        "gss_acquire_cred_from", "gssapi_krb5_2_MIT";
    accept_sec_context: fn(*mut u32, *mut *mut Context, *mut Credential, *const Bytes, *const c_void,
        *mut *mut Name, *mut *const Oid, *mut Bytes, *mut u32, *mut u32, *mut *mut Credential) -> u32,
        "gss_accept_sec_context", "gssapi_krb5_2_MIT";
    inquire_sec_context_by_oid: fn(*mut u32, *mut Context, *const Oid, *mut *mut ByteSet) -> u32,
        "gss_inquire_sec_context_by_oid", "gssapi_krb5_2_MIT";
    get_mic: fn(*mut u32, *mut Context, u32, *const Bytes, *mut Bytes) -> u32,
        "gss_get_mic", "gssapi_krb5_2_MIT";
    verify_mic: fn(*mut u32, *mut Context, *const Bytes, *const Bytes, *mut u32) -> u32,
        "gss_verify_mic", "gssapi_krb5_2_MIT";
    display_name: fn(*mut u32, *mut Name, *mut Bytes, *mut *const Oid) -> u32,
        "gss_display_name", "gssapi_krb5_2_MIT";
    localname: fn(*mut u32, *mut Name, *const Oid, *mut Bytes) -> u32,
        "gss_localname", "gssapi_krb5_2_MIT";
    display_status: fn(*mut u32, u32, c_int, *const Oid, *mut u32, *mut Bytes) -> u32,
        "gss_display_status", "gssapi_krb5_2_MIT";
    release_buffer: fn(*mut u32, *mut Bytes) -> u32, "gss_release_buffer", "gssapi_krb5_2_MIT";
    release_buffer_set: fn(*mut u32, *mut *mut ByteSet) -> u32,
        "gss_release_buffer_set", "gssapi_krb5_2_MIT";
    release_name: fn(*mut u32, *mut *mut Name) -> u32, "gss_release_name", "gssapi_krb5_2_MIT";
    release_cred: fn(*mut u32, *mut *mut Credential) -> u32, "gss_release_cred", "gssapi_krb5_2_MIT";
    delete_sec_context: fn(*mut u32, *mut *mut Context, *mut Bytes) -> u32,
        "gss_delete_sec_context", "gssapi_krb5_2_MIT";
}
