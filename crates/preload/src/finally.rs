//! What must be done also where `pthread_cancel` ends a thread in the middle of a call: the C library
//! unwinds it then, from the system call in which it sleeps.

/// Does its work when it goes out of scope, by whatever way.
pub(crate) struct Finally<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
