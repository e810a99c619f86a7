//! Names in the objects that a program came with, looked up as `dlsym` does.
//!
//! Not by `dlsym`: that may allocate (in glibc before 2.34 at the first call of a thread, and in all of them for the words of
//! what it has not found), and an allocator that is just beginning calls us to read its settings. And it is in another library
//! than libc there, which a program need not have. The objects are asked for once, at the first look, before there are threads:
//! the loader's lock for that stays held in the child of a fork, if another thread has it. They are never unloaded. What comes
//! later, `dlsym` is asked for.
//!
//! The format: System V gABI, "Dynamic Section" and "Hash Table"; the tables of GNU's `DT_GNU_HASH` and `DT_VERSYM`. Objects
//! are believed: the loader runs them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::OnceLock;

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info};

mod scope;

pub(crate) use scope::{forked, lead, needs_its_caller};

/// Where a look begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// With the program (`RTLD_DEFAULT`).
    Program,
    /// Behind this library (`RTLD_NEXT`).
    BehindUs,
}

/// The objects that the program came with.
struct Objects {
    all: Vec<Tables>,
    /// Those from here on are behind us.
    behind: usize,
    /// This library.
    own: Option<usize>,
}

impl Objects {
    fn known() -> &'static Self {
        static OBJECTS: OnceLock<Objects> = OnceLock::new();
        OBJECTS.get_or_init(|| {
            let mut seen = Self { all: Vec::new(), behind: usize::MAX, own: None };
            // SAFETY: the function gets the objects that it is called with, and what it fills outlives the call.
            unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut seen).cast()) };
            seen
        })
    }

    /// The first definition of a name by its default version; null: there is none. Functions that the loader chooses among
    /// at run time (`STT_GNU_IFUNC`) are not found: libc has none of those that we ask for.
    fn find(&self, name: &CStr, begin: Begin) -> *mut c_void {
        let from = if begin == Begin::Program { 0 } else { self.behind };
        let hash = gnu_hash(name.to_bytes());
        let mut objects = self.all.get(from..).unwrap_or_default().iter();
        objects
            .find_map(|object| object.look(name, hash))
            .map_or(null_mut(), |at| at as *mut c_void)
    }
}

/// To be called before there are threads.
pub(crate) fn begin() {
    let _ = Objects::known();
}

/// The first definition of a function or a word of memory; null: there is none.
pub(crate) fn find(name: &CStr, begin: Begin) -> *mut c_void {
    let objects = Objects::known();
    let found = objects.find(name, begin);
    if !found.is_null() {
        return found;
    }
    let dlsym = objects.find(c"dlsym", Begin::BehindUs);
    type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the C library's function of that name, or null, which is `None`.
    let dlsym: Option<Find> = unsafe { transmute(dlsym) };
    let place = if begin == Begin::Program { libc::RTLD_DEFAULT } else { libc::RTLD_NEXT };
    // It sees by whom it is called whose next one is meant.
    // SAFETY: a name that ends.
    std::hint::black_box(dlsym.map_or(null_mut(), |dlsym| unsafe { dlsym(place, name.as_ptr()) }))
}

/// [`find`] behind us, and if there is none among the objects that the program came with, in those that have come since: of
/// functions that are in a library of their own where the C library is old. That takes the loader's lock.
pub(crate) fn find_also_later(name: &CStr) -> *mut c_void {
    let found = find(name, Begin::BehindUs);
    if found.is_null() { of_object(name, |_| true) } else { found }
}

/// Path of the object that an address lies in, as the loader has it; `None`: it lies in none, or nobody knows.
pub(crate) fn object_of(address: *const c_void) -> Option<&'static CStr> {
    type Tell = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info) -> c_int;
    // SAFETY: the C library's function of that name, or null, which is `None`.
    let dladdr: Option<Tell> = unsafe { transmute(find(c"dladdr", Begin::BehindUs)) };
    // SAFETY: all zeros is a valid value.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about.
    let is_known = unsafe { dladdr?(address, &raw mut about) } != 0 && !about.dli_fname.is_null();
    // SAFETY: the loader's own text, which ends, and is used before anybody can unload the object.
    is_known.then(|| unsafe { CStr::from_ptr(about.dli_fname) })
}

/// A function of `libgcc_s`, which the C library loads to cancel a thread, or of another unwinder if there is none; null:
/// there is none of these.
#[cfg(not(test))]
pub(crate) fn of_unwinder(name: &CStr) -> *mut c_void {
    let found = of_object(name, |file| file.starts_with(b"libgcc_s.so"));
    if found.is_null() { find(name, Begin::BehindUs) } else { found }
}

/// The definition of a name in the first object, of those that are loaded now, whose file is a wanted one. Not in this
/// library.
fn of_object(name: &CStr, is_wanted: fn(&[u8]) -> bool) -> *mut c_void {
    struct Search<'a> {
        name: &'a CStr,
        is_wanted: fn(&[u8]) -> bool,
        found: Option<usize>,
    }
    unsafe extern "C" fn visit(
        info: *mut dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description, and what is given below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
        if (search.is_wanted)(file_of(info)) && !is_ours(info) {
            let hash = gnu_hash(search.name.to_bytes());
            search.found = Tables::of(info).and_then(|tables| tables.look(search.name, hash));
        }
        search.found.is_some().into()
    }
    let mut search = Search { name, is_wanted, found: None };
    // SAFETY: the function gets the objects that it is called with, and what it fills outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found.map_or(null_mut(), |at| at as *mut c_void)
}

/// Name of the file that an object was loaded from; empty: the program, or nobody knows.
fn file_of(info: &dl_phdr_info) -> &[u8] {
    if info.dlpi_name.is_null() {
        return &[];
    }
    // SAFETY: the loader's own text, which ends.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Whether an object is this library.
fn is_ours(info: &dl_phdr_info) -> bool {
    /// Lies in this library.
    static HERE: u8 = 0;
    contains(info, (&raw const HERE) as u64)
}

unsafe extern "C" fn note(info: *mut dl_phdr_info, _size: usize, seen: *mut c_void) -> c_int {
    // SAFETY: the loader's description, and what `known` has given it.
    let (info, seen) = unsafe { (&*info, &mut *seen.cast::<Objects>()) };
    let before = seen.all.len();
    // The kernel's functions are for libc to call: programs are not linked with them.
    // SAFETY: always callable.
    let of_kernel = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if of_kernel == 0 || !contains(info, of_kernel) {
        seen.all.extend(Tables::of(info));
    }
    if is_ours(info) {
        seen.own = (seen.all.len() > before).then_some(before);
        seen.behind = seen.all.len();
    }
    0
}

fn headers(info: &dl_phdr_info) -> &[Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's array.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

fn contains(info: &dl_phdr_info, address: u64) -> bool {
    headers(info).iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        address.wrapping_sub(start) < header.p_memsz
    })
}

/// What the dynamic section of an object says, each a tag and a value.
fn entries(info: &dl_phdr_info) -> impl Iterator<Item = [u64; 2]> {
    const DT_NULL: u64 = 0;
    let dynamic = headers(info).iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    let at = dynamic.map(|dynamic| info.dlpi_addr.wrapping_add(dynamic.p_vaddr));
    let mut next = at.map(|at| at as *const [u64; 2]);
    std::iter::from_fn(move || {
        let at = next?;
        // SAFETY: the section ends in an entry that says so.
        let entry = unsafe { at.read() };
        // SAFETY: used only if this was not the last one.
        next = (entry[0] != DT_NULL).then(|| unsafe { at.add(1) });
        next.is_some().then_some(entry)
    })
}

/// What such a value leads to: the loader has made addresses of them, unless it could not write there.
fn address(info: &dl_phdr_info, value: u64) -> usize {
    let value = if contains(info, value) { value } else { value.wrapping_add(info.dlpi_addr) };
    usize::try_from(value).unwrap_or(0)
}

/// The tables of an object that say what is in it.
struct Tables {
    base: usize,
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    hash: Hash,
    /// Null: it has no versions.
    versions: *const u16,
}

// SAFETY: what the loader has written before it has run anything, which nobody changes.
unsafe impl Send for Tables {}
// SAFETY: the same.
unsafe impl Sync for Tables {}

enum Hash {
    Gnu(*const u32),
    SystemV(*const u32),
}

impl Tables {
    fn of(info: &dl_phdr_info) -> Option<Self> {
        const DT_HASH: u64 = 4;
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        const DT_VERSYM: u64 = 0x6fff_fff0;
        let base = usize::try_from(info.dlpi_addr).ok()?;
        let (mut symbols, mut strings, mut gnu, mut system_v, mut versions) = (0, 0, 0, 0, 0);
        for [tag, value] in entries(info) {
            let place = match tag {
                DT_HASH => &mut system_v,
                DT_STRTAB => &mut strings,
                DT_SYMTAB => &mut symbols,
                DT_GNU_HASH => &mut gnu,
                DT_VERSYM => &mut versions,
                _ => continue,
            };
            *place = address(info, value);
        }
        if symbols == 0 {
            return None;
        }
        let hash = match (gnu, system_v) {
            (0, 0) => return None,
            (0, table) => Hash::SystemV(table as *const u32),
            (table, _) => Hash::Gnu(table as *const u32),
        };
        (symbols != 0 && strings != 0).then_some(Self {
            base,
            symbols: symbols as *const Elf64_Sym,
            strings: strings as *const c_char,
            hash,
            versions: versions as *const u16,
        })
    }

    /// Address of what has this name.
    fn look(&self, name: &CStr, hash: u32) -> Option<usize> {
        match self.hash {
            Hash::Gnu(table) => self.look_gnu(table, name, hash),
            Hash::SystemV(table) => self.look_system_v(table, name),
        }
    }

    fn look_gnu(&self, table: *const u32, name: &CStr, hash: u32) -> Option<usize> {
        // SAFETY: the header of the table.
        let [buckets, first, words, shift] = unsafe { table.cast::<[u32; 4]>().read() };
        if buckets == 0 || words == 0 {
            return None;
        }
        // SAFETY: the filter is behind the header, and the buckets behind that, and the chains behind those.
        let filter = unsafe { table.add(4) }.cast::<u64>();
        // SAFETY: one of its words.
        let word = unsafe { filter.add((hash / 64 % words) as usize).read_unaligned() };
        let both = 1u64 << (hash % 64) | 1u64 << (hash.wrapping_shr(shift) % 64);
        if word & both != both {
            return None;
        }
        // SAFETY: as above.
        let bucket = unsafe { filter.add(words as usize) }.cast::<u32>();
        // SAFETY: as above.
        let chain = unsafe { bucket.add(buckets as usize) };
        // SAFETY: one of the buckets.
        let mut symbol = unsafe { bucket.add((hash % buckets) as usize).read() };
        if symbol < first {
            return None;
        }
        loop {
            // SAFETY: each symbol from the first one on has a word, and a chain ends in one that says so.
            let said = unsafe { chain.add((symbol - first) as usize).read() };
            if said | 1 == hash | 1
                && let Some(at) = self.is_it(symbol, name)
            {
                return Some(at);
            }
            if said & 1 != 0 {
                return None;
            }
            symbol += 1;
        }
    }

    fn look_system_v(&self, table: *const u32, name: &CStr) -> Option<usize> {
        // SAFETY: the header of the table.
        let [buckets, symbols] = unsafe { table.cast::<[u32; 2]>().read() };
        if buckets == 0 {
            return None;
        }
        let bucket = system_v_hash(name.to_bytes()) % buckets;
        // SAFETY: one of the buckets.
        let mut symbol = unsafe { table.add(2 + bucket as usize).read() };
        // A chain is no longer than there are symbols.
        for _ in 0..symbols {
            if symbol == 0 {
                return None;
            }
            if let Some(at) = self.is_it(symbol, name) {
                return Some(at);
            }
            // SAFETY: the chains are behind the buckets, with a word for each symbol.
            symbol = unsafe { table.add(2 + buckets as usize + symbol as usize).read() };
        }
        None
    }

    /// Where a symbol is, if it is what we look for.
    fn is_it(&self, symbol: u32, name: &CStr) -> Option<usize> {
        const SHN_UNDEF: u16 = 0;
        const SHN_ABS: u16 = 0xfff1;
        const HIDDEN: u16 = 0x8000;
        const STB_LOCAL: u8 = 0;
        const NOTYPE_OBJECT_FUNC: [u8; 3] = [0, 1, 2];
        // SAFETY: the tables say that there is this symbol.
        let about = unsafe { self.symbols.add(symbol as usize).read() };
        let (binding, kind) = (about.st_info >> 4, about.st_info & 15);
        let is_defined = about.st_shndx != SHN_UNDEF && about.st_value != 0 && binding != STB_LOCAL;
        if !is_defined || !NOTYPE_OBJECT_FUNC.contains(&kind) {
            return None;
        }
        // SAFETY: the symbol's name, which ends.
        if unsafe { CStr::from_ptr(self.strings.add(about.st_name as usize)) } != name {
            return None;
        }
        if !self.versions.is_null() {
            // SAFETY: where there are versions, each symbol has one.
            let version = unsafe { self.versions.add(symbol as usize).read() };
            if version & HIDDEN != 0 {
                return None;
            }
        }
        let base = if about.st_shndx == SHN_ABS { 0 } else { self.base };
        Some(base.wrapping_add(usize::try_from(about.st_value).ok()?))
    }
}

/// The hash of `DT_GNU_HASH`.
fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// The hash of the System V gABI.
fn system_v_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &CStr) -> *mut c_void {
        // SAFETY: a name that ends.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    }

    /// All that we stand in front of, and words of memory, and names of which there are several versions.
    #[test]
    fn names_are_where_dlsym_finds_them() {
        let more = [
            c"environ",
            c"__libc_single_threaded",
            c"pthread_testcancel",
            c"pthread_cond_wait",
            c"pthread_key_create",
            c"realpath",
            c"shunt_carries",
            c"no_such_name",
            c"",
            // The kernel's, which are not linked with.
            c"__vdso_clock_gettime",
        ];
        let mut found = 0;
        for name in crate::real::NAMES.iter().copied().chain(more) {
            assert_eq!(find(name, Begin::Program), asked(name), "{name:?}");
            found += usize::from(!asked(name).is_null());
        }
        assert!(found > 100, "{found} names");
    }

    /// Without ours, which a test is itself.
    #[test]
    fn behind_us_there_is_libc() {
        for name in [c"connect", c"read", c"poll", c"epoll_wait", c"fork"] {
            let at = find(name, Begin::BehindUs);
            let path = object_of(at).unwrap().to_str().unwrap();
            assert!(path.contains("/libc.so"), "{name:?} in {path}");
        }
        // The program is not behind itself.
        assert_eq!(find(c"shunt_carries", Begin::BehindUs), null_mut());
        assert!(object_of(find as *const c_void).is_some());
        assert_eq!(object_of(std::ptr::without_provenance(8)), None);
    }

    /// Hashes of the gABI and of GNU's format, as others have computed them.
    #[test]
    fn hashes() {
        for (name, gnu, system_v) in [
            ("", 0x1505, 0),
            ("printf", 0x156b_2bb8, 0x077_905a6),
            ("exit", 0x7c96_7e3f, 0x0006_cf04),
            ("syscall", 0xbac2_12a0, 0x0b09_985c),
            ("flapenguin.me", 0x8ae9_f18e, 0x0398_7915),
        ] {
            assert_eq!(gnu_hash(name.as_bytes()), gnu, "{name}");
            assert_eq!(system_v_hash(name.as_bytes()), system_v, "{name}");
        }
    }
}
