//! What a thread has of the heap, counted to the byte.
//!
//! A program that wants to know says `#[global_allocator] static HEAP: Counted = Counted;`. Each thread counts for
//! itself: what others do meanwhile, other tests among them, is not seen.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counted;

/// Counts `bytes` as allocated, or as given back if they are less than 0. For what counts too and is elsewhere.
pub fn count(bytes: i64) {
    // Neither has a destructor, so both are there until the very end of a thread.
    let _ = HELD.try_with(|held| {
        let now = held.get().wrapping_add(bytes);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    });
}

/// Bytes that this thread has allocated and nobody has given back on it; less than 0 where it has given back others'.
#[must_use]
pub fn held() -> i64 {
    HELD.with(Cell::get)
}

/// The most that [`held`] was at any instant since this was called last.
pub fn most() -> i64 {
    MOST.with(|most| most.replace(held()))
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Nothing, if there was no memory.
fn count_new(new: *mut u8, bytes: usize) {
    if !new.is_null() {
        count(signed(bytes));
    }
}

// SAFETY: all is done by the system's allocator, with the arguments as they came, and answered as it answers; what is
// counted meanwhile is in words of the thread, and takes no memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is the one that is asked for.
        let new = unsafe { System.alloc(layout) };
        count_new(new, layout.size());
        new
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: likewise; what is given back came from `System`, since all of it does.
        unsafe { System.dealloc(at, layout) };
        count(-signed(layout.size()));
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let new = unsafe { System.alloc_zeroed(layout) };
        count_new(new, layout.size());
        new
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`.
        let new = unsafe { System.realloc(at, layout, new_size) };
        // Both were there while one was copied to the other, if it had to be.
        count_new(new, new_size);
        if !new.is_null() {
            count(-signed(layout.size()));
        }
        new
    }
}
