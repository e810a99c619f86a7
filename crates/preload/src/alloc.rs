//! Memory of our own: the guest's `malloc` may be anybody's, may call us, and may hold its locks.
//!
//! Powers of two from mapped pages, kept for reuse; nothing on the data path allocates.

use std::alloc::{GlobalAlloc, Layout};

use sys::call;
use sys::lock::{self, Guarded, Value};

const CLASSES: usize = 16;
const SMALLEST: usize = 32;
const CHUNK_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Pool {
    free: [usize; CLASSES],
    next: usize,
    end: usize,
}

/// The allocator of this library.
pub(crate) struct Own;

static POOL: Guarded<Pool> = Guarded::new(Pool { free: [0; CLASSES], next: 0, end: 0 });

/// To be called around `fork`: the child must not find the pool locked by a thread it has not.
pub(crate) fn forked() {
    POOL.word().store(0, std::sync::atomic::Ordering::Relaxed);
}

/// The pool; `None` in a signal handler that has interrupted this thread in here. (One may also have left it by a
/// jump.)
fn pool() -> Option<Value<'static, Pool>> {
    POOL.lock().or_else(|| {
        lock::free_if_left(POOL.word());
        POOL.lock()
    })
}

fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    let class = (size / SMALLEST).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

// SAFETY: a block is handed out once until it is given back; blocks of a class are as
// large as the class and aligned to their size (chunks are cut from their start in order of
// powers of two, see `cut`), which is at least the layout's alignment.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            return call::mmap_private(layout.size()).unwrap_or(std::ptr::null_mut());
        };
        let Some(mut pool) = pool() else {
            // A signal handler, which has interrupted us in here.
            let pages = call::mmap_private((SMALLEST << class).max(layout.size()));
            return pages.ok().filter(|_| layout.align() <= 4096).unwrap_or(std::ptr::null_mut());
        };
        let head = pool.free[class];
        if head != 0 {
            // SAFETY: a free block holds the address of the next one.
            pool.free[class] = unsafe { *(head as *const usize) };
            return head as *mut u8;
        }
        pool.cut(SMALLEST << class)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            call::munmap(at, layout.size());
            return;
        };
        let Some(mut pool) = pool() else { return };
        // SAFETY: the block is ours again, at least 32 bytes and aligned for a word.
        unsafe { *at.cast::<usize>() = pool.free[class] };
        pool.free[class] = at as usize;
    }
}

impl Pool {
    fn cut(&mut self, size: usize) -> *mut u8 {
        let mut at = self.next.next_multiple_of(size);
        if self.next == 0 || at + size > self.end {
            let bytes = CHUNK_BYTES.max(size * 2);
            let Ok(start) = call::mmap_private(bytes) else { return std::ptr::null_mut() };
            self.end = start as usize + bytes;
            at = (start as usize).next_multiple_of(size);
        }
        self.next = at + size;
        at as *mut u8
    }
}
