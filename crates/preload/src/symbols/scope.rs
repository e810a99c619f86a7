//! Libraries that a program loads with a scope of their own (`RTLD_DEEPBIND`), as PHP does its extensions.
//!
//! The loader binds their calls to what they have brought along, and the C library is part of that: past us. What they do to
//! a connection of the program's, or wait for, would be done to its socket alone, while its bytes lie in rings. So the places
//! that lead such a library's calls to a function behind us are made to lead to ours, as they do without that flag. Whatever
//! else a scope of its own is for is left as it is: names that the library defines, or brings, stay its own.
//!
//! Only what has been relocated is touched: the library of which `dlopen` has answered, and what it needs, but for what the
//! program came with, which has no such scope.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{Elf64_Rela, dl_phdr_info};
use sys::sync::AtomicU32;
use sys::{call, lock};

use super::{Begin, Objects, Tables, address, contains, entries, file_of, find, gnu_hash, headers};

/// Relocations that hold the address of a function: R_X86_64_64, _GLOB_DAT, _JUMP_SLOT. The last one may be open until the
/// first call.
#[cfg(target_arch = "x86_64")]
const KINDS: [u64; 3] = [1, 6, 7];
/// R_AARCH64_ABS64, _GLOB_DAT, _JUMP_SLOT.
#[cfg(target_arch = "aarch64")]
const KINDS: [u64; 3] = [257, 1025, 1026];

const DT_NEEDED: u64 = 1;
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_SONAME: u64 = 14;
const DT_RPATH: u64 = 15;
const DT_JMPREL: u64 = 23;
const DT_RUNPATH: u64 = 29;

/// What `dlopen` answers: the beginning of `struct link_map` (`<link.h>`).
#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
    dynamic: *const c_void,
}

/// Two threads may load what needs the same: memory that one seals the other may be writing to. Nothing is asked of the loader
/// by who holds it: a constructor that loads libraries comes here with the loader's own lock.
static LEADING: AtomicU32 = AtomicU32::new(0);

/// To be called in a forked child: another thread may have been at it.
pub(crate) fn forked() {
    LEADING.store(0, Ordering::Relaxed);
}

/// Has a library's calls, and those of what it needs, lead to us where they lead past us.
///
/// # Safety
///
/// What `dlopen` has just answered, and is not closed meanwhile.
pub(crate) unsafe fn lead(handle: *mut c_void) {
    // SAFETY: the caller's promise.
    let dynamic = unsafe { (*handle.cast::<LinkMap>()).dynamic };
    for object in with_what_it_needs(dynamic as u64) {
        lead_object(&object, handle);
    }
    // The program asks whether `dlopen` failed, and not whether we have found all that we looked for.
    type Tell = extern "C" fn() -> *mut c_char;
    // SAFETY: the C library's function of that name, or null, which is `None`.
    let dlerror: Option<Tell> = unsafe { std::mem::transmute(super::find_also_later(c"dlerror")) };
    if let Some(dlerror) = dlerror {
        dlerror();
    }
}

/// Whether the loader looks for that library as the object that asks for it says, so that nobody else can ask for it.
/// `caller`: an address in that object.
pub(crate) fn needs_its_caller(path: &CStr, caller: *const c_void) -> bool {
    struct Search {
        caller: u64,
        has_paths: bool,
    }
    unsafe extern "C" fn visit(
        info: *mut dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description, and what is given below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        let is_it = contains(info, search.caller);
        // `DT_RPATH` is also for what is loaded by what an object needs. That of the program counts whoever asks.
        let is_program = file_of(info).is_empty();
        search.has_paths |= entries(info).any(|[tag, _]| match tag {
            DT_RPATH => is_it || !is_program,
            DT_RUNPATH => is_it,
            _ => false,
        });
        search.has_paths.into()
    }
    let path = path.to_bytes();
    if path.contains(&b'$') || path.contains(&b'/') {
        // `$ORIGIN` is the place of the object.
        return path.contains(&b'$');
    }
    let mut search = Search { caller: caller as u64, has_paths: false };
    // SAFETY: the function gets the objects that it is called with, and what it fills outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.has_paths
}

/// The object whose dynamic section lies there, and all that it needs, and what that needs.
fn with_what_it_needs(dynamic: u64) -> Vec<dl_phdr_info> {
    struct Search {
        dynamic: u64,
        found: Vec<dl_phdr_info>,
    }
    unsafe extern "C" fn visit(
        info: *mut dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description, and what is given below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        let is_known = |other: &dl_phdr_info| std::ptr::eq(other.dlpi_phdr, info.dlpi_phdr);
        let is_wanted =
            || dynamic_of(info) == Some(search.dynamic) || is_needed(info, &search.found);
        if !came_with_the_program(info) && !search.found.iter().any(is_known) && is_wanted() {
            search.found.push(*info);
        }
        0
    }
    let mut search = Search { dynamic, found: Vec::new() };
    loop {
        let before = search.found.len();
        // SAFETY: the function gets the objects that it is called with, and what it fills outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        if search.found.len() == before {
            return search.found;
        }
    }
}

fn came_with_the_program(info: &dl_phdr_info) -> bool {
    Objects::known().all.iter().any(|object| object.base as u64 == info.dlpi_addr)
}

fn dynamic_of(info: &dl_phdr_info) -> Option<u64> {
    let dynamic = headers(info).iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    Some(info.dlpi_addr.wrapping_add(dynamic.p_vaddr))
}

/// Whether one of these needs an object, by its own name or by that of its file.
fn is_needed(info: &dl_phdr_info, by: &[dl_phdr_info]) -> bool {
    let own = texts(info, DT_SONAME).next();
    by.iter().any(|other| {
        texts(other, DT_NEEDED)
            .any(|name| own == Some(name) || !name.is_empty() && file_of(info) == name)
    })
}

/// What an object says under this tag, which is text.
fn texts(info: &dl_phdr_info, tag: u64) -> impl Iterator<Item = &[u8]> {
    let strings = entries(info).find(|[tag, _]| *tag == DT_STRTAB);
    let strings = strings.map_or(0, |[_, at]| address(info, at));
    entries(info).filter(move |entry| entry[0] == tag && strings != 0).map(move |[_, at]| {
        let at = strings.wrapping_add(usize::try_from(at).unwrap_or(0));
        // SAFETY: one of the object's strings, which end.
        unsafe { CStr::from_ptr(at as *const c_char) }.to_bytes()
    })
}

/// The relocations of an object that name symbols.
fn relocations(info: &dl_phdr_info) -> impl Iterator<Item = Elf64_Rela> {
    let mut tables = [(0, 0); 2];
    for [tag, value] in entries(info) {
        match tag {
            DT_RELA => tables[0].0 = address(info, value),
            DT_RELASZ => tables[0].1 = value,
            DT_JMPREL => tables[1].0 = address(info, value),
            DT_PLTRELSZ => tables[1].1 = value,
            _ => {}
        }
    }
    tables.into_iter().filter(|(at, _)| *at != 0).flat_map(|(at, bytes)| {
        let count = usize::try_from(bytes).unwrap_or(0) / size_of::<Elf64_Rela>();
        // SAFETY: the table is so long, by what the object says of it.
        (0..count).map(move |i| unsafe { (at as *const Elf64_Rela).add(i).read() })
    })
}

fn lead_object(info: &dl_phdr_info, handle: *mut c_void) {
    const SHN_UNDEF: u16 = 0;
    let Some(tables) = Tables::of(info) else { return };
    for relocation in relocations(info) {
        let (kind, symbol) = (relocation.r_info & 0xffff_ffff, relocation.r_info >> 32);
        if !KINDS.contains(&kind) || symbol == 0 {
            continue;
        }
        // SAFETY: a symbol that a relocation names is there.
        let about = unsafe { tables.symbols.add(usize::try_from(symbol).unwrap_or(0)).read() };
        if about.st_shndx != SHN_UNDEF {
            continue;
        }
        // SAFETY: the symbol's name, which ends.
        let name = unsafe { CStr::from_ptr(tables.strings.add(about.st_name as usize)) };
        let Some(ours) = ours(name) else { continue };
        let place = info.dlpi_addr.wrapping_add(relocation.r_offset) as *mut *mut c_void;
        if !place.is_aligned() || !is_for_data(info, place as u64) {
            continue;
        }
        // SAFETY: the place that the loader fills, or has filled.
        let leads_to = unsafe { AtomicPtr::from_ptr(place) };
        let now = leads_to.load(Ordering::Relaxed);
        let behind = find(name, Begin::BehindUs);
        let is_open = || {
            kind == KINDS[2] && contains(info, now as u64) && opens_to(handle, name, ours, behind)
        };
        if !behind.is_null() && (now == behind || is_open()) {
            // Whoever has written there meanwhile, the library itself or the loader, is right.
            unsealed(info, place as usize, || {
                let _ = leads_to.compare_exchange(now, ours, Ordering::Release, Ordering::Relaxed);
            });
        }
    }
}

/// What this library exports under that name.
fn ours(name: &CStr) -> Option<*mut c_void> {
    let objects = Objects::known();
    let at = objects.all.get(objects.own?)?.look(name, gnu_hash(name.to_bytes()))?;
    Some(at as *mut c_void)
}

/// Whether a call that is not bound yet would be bound to what is behind us, and by a program that has no function of that
/// name itself.
fn opens_to(handle: *mut c_void, name: &CStr, ours: *mut c_void, behind: *mut c_void) -> bool {
    type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let dlsym = super::find_also_later(c"dlsym");
    // SAFETY: the C library's function of that name, or null, which is `None`.
    let dlsym: Option<Find> = unsafe { std::mem::transmute(dlsym) };
    find(name, Begin::Program) == ours
        // SAFETY: a library that is loaded, and a name that ends.
        && dlsym.is_some_and(|dlsym| unsafe { dlsym(handle, name.as_ptr()) } == behind)
}

/// Whether memory of an object is written to while it runs, or was until it was sealed: not code in which the loader has
/// filled addresses (`DT_TEXTREL`).
fn is_for_data(info: &dl_phdr_info, place: u64) -> bool {
    let is_writable = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0
    };
    headers(info).iter().filter(is_writable).any(|header| {
        place.wrapping_sub(info.dlpi_addr.wrapping_add(header.p_vaddr)) < header.p_memsz
    })
}

/// Writes to a word of an object that the loader may have sealed once it had filled it (`PT_GNU_RELRO`).
fn unsealed(info: &dl_phdr_info, place: usize, write: impl FnOnce()) {
    const PT_GNU_RELRO: u32 = 0x6474_e552;
    // SAFETY: always callable.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let down = |at: u64| usize::try_from(at).unwrap_or(0) & !(page - 1);
    let is_sealed = headers(info).iter().filter(|h| h.p_type == PT_GNU_RELRO).any(|header| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        (down(start)..down(start.wrapping_add(header.p_memsz))).contains(&place)
    });
    if !is_sealed {
        return write();
    }
    let at = (place & !(page - 1)) as *mut u8;
    let _held = lock::lock(&LEADING);
    if call::mprotect(at, page, libc::PROT_READ | libc::PROT_WRITE).is_ok() {
        write();
        let _ = call::mprotect(at, page, libc::PROT_READ);
    }
}
