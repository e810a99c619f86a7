//! What a core runs: one thread, one loop, tasks that never leave it.
//!
//! A [`Runtime`] has some *vectors*. Each is a thread with its own ready queue, timers, and either an
//! io_uring or an epoll set ([`Driver`]); what runs on it are futures that need not be `Send`. The free
//! functions of this module ([`spawn`], [`now`], [`sleep_until`], [`offload()`] and so on) mean the vector of the
//! calling thread, and panic on a thread that is none.
//!
//! Nothing given to the kernel is borrowed: sockets wait for readiness and then call `recv` and `send`
//! themselves, file operations own their buffers. So any future may be dropped at any time.

mod core;
mod file;
mod offload;
mod pacing;
mod reactor;
mod socket;
mod spin;
mod sync;
mod task;
#[cfg(test)]
mod tests;
mod timer;
mod vector;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use file::{fdatasync, fsync, read_at, write_at};
pub use offload::{offload, try_offload};
pub use pacing::is_same_host;
pub use reactor::{Readiness, Source};
pub use socket::{Listener, Socket, bound_socket, first_socket};
pub use sync::{
    Budget, Event, Lost, Oneshot, Permit, Popped, Queue, Refused, Sender, Taking, Waiting, oneshot,
};
pub use task::{Join, YieldNow};
pub use timer::{Elapsed, Sleep, Timeout};
pub use vector::Counters;

use self::core::{Core, Everyone};
use offload::Pool;
use vector::Shared;

/// Which vector: 0 to the number of vectors less one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VectorId(pub usize);

/// How a vector waits for its descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// io_uring if the kernel lets us, else epoll.
    #[default]
    Auto,
    /// io_uring, or no start.
    Uring,
    /// epoll, and threads for file operations that would wait.
    Epoll,
}

/// How a runtime is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many vectors, at least 1.
    pub vectors: usize,
    /// The CPU of each vector, by turns; `None`: the scheduler's choice.
    pub pin: Option<Vec<usize>>,
    /// How to wait.
    pub driver: Driver,
    /// The most threads for what may block, all vectors together, at least 1.
    pub offload_threads: usize,
    /// How long a vector at most looks for work before it sleeps, which it does only when that has been paying.
    /// Zero: it sleeps at once. Has no effect where there is one CPU, or under `shunt run`.
    pub spin: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let cpus = cpus();
        Self {
            vectors: cpus,
            pin: None,
            driver: Driver::Auto,
            offload_threads: 8 * cpus + 16,
            spin: Duration::ZERO,
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Some vectors that run. Dropped, it stops them without grace.
#[derive(Debug)]
pub struct Runtime {
    all: Arc<Everyone>,
    threads: Vec<JoinHandle<()>>,
    driver: Driver,
    fell_back: Option<String>,
}

/// How long calls that may block have to end at the end, however soon that is to be.
const CALLS_END: Duration = Duration::from_secs(5);

/// What a vector says when it has begun, or why it could not.
type Begun = io::Result<(Driver, Option<String>)>;

impl Runtime {
    /// Starts the vectors; each calls `main` once and runs what it returns as its first task. A vector goes
    /// on when that task has ended, until [`Runtime::stop`].
    ///
    /// # Errors
    ///
    /// A thread, an epoll set or a ring that could not be made; with [`Driver::Auto`] a ring that could not be
    /// made is no error.
    pub fn start<M, F>(config: &Config, main: M) -> io::Result<Self>
    where
        M: Fn(VectorId) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + 'static,
    {
        let vectors = (0..config.vectors.max(1)).map(|_| Shared::new().map(Arc::new));
        let vectors = vectors.collect::<io::Result<Box<[_]>>>()?;
        let all = Arc::new(Everyone::new(vectors, Pool::new(config.offload_threads)));
        let main = Arc::new(main);
        let (tell, told) = mpsc::channel::<Begun>();
        let mut runtime = Self { all, threads: Vec::new(), driver: config.driver, fell_back: None };
        for index in 0..runtime.all.vectors.len() {
            let (all, main, tell) = (runtime.all.clone(), main.clone(), tell.clone());
            let (driver, id) = (config.driver, VectorId(index));
            // The library of `shunt run` has a spin of its own, which knows whom it waits for.
            let spins = cpus() > 1 && !sys::stream::in_front();
            let spin = if spins { config.spin } else { Duration::ZERO };
            let cpu = config.pin.as_ref().filter(|p| !p.is_empty()).map(|p| p[index % p.len()]);
            let thread = std::thread::Builder::new().name(format!("shunt-smb-{index}"));
            runtime.threads.push(thread.spawn(move || {
                let begun = pin(cpu).and_then(|()| Core::new(id, all, driver, spin));
                match begun {
                    Ok((core, driver, fell_back)) => {
                        let _ = tell.send(Ok((driver, fell_back)));
                        drop(tell);
                        vector::run(core, async move { main(id).await });
                    }
                    Err(error) => drop(tell.send(Err(error))),
                }
            })?);
        }
        drop(tell);
        for begun in told {
            // On an error the drop of `runtime` stops those that have begun.
            let (driver, fell_back) = begun?;
            runtime.driver = if runtime.fell_back.is_some() { runtime.driver } else { driver };
            runtime.fell_back = runtime.fell_back.take().or(fell_back);
        }
        Ok(runtime)
    }

    /// How its vectors wait: never [`Driver::Auto`]. If one of them fell back, epoll.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Why [`Driver::Auto`] became epoll, if it did.
    #[must_use]
    pub fn fell_back(&self) -> Option<&str> {
        self.fell_back.as_deref()
    }

    /// How many vectors there are.
    #[must_use]
    pub fn vectors(&self) -> usize {
        self.all.vectors.len()
    }

    /// Has `vector` call `what`, in turn with its tasks; never, if that has ended. From any thread.
    ///
    /// # Panics
    ///
    /// When there is no such vector.
    pub fn post(&self, vector: VectorId, what: impl FnOnce() + Send + 'static) {
        self.all.vectors[vector.0].post(Box::new(what));
    }

    /// What `vector` has done so far.
    ///
    /// # Panics
    ///
    /// When there is no such vector.
    #[must_use]
    pub fn counters(&self, vector: VectorId) -> Counters {
        self.all.vectors[vector.0].counters()
    }

    /// Asks tasks to end (see [`stopping`]), gives them `grace` for it, drops those that have not, and waits
    /// for the threads. Not to be called by a task, which would wait for itself: see [`ask_to_stop`].
    ///
    /// How many calls that may block have not come back by then, nor within as much time again (5 seconds at least):
    /// who ends the process ends them, nobody else can.
    pub fn stop(mut self, grace: Duration) -> usize {
        self.end(grace)
    }

    /// Waits until a task has called [`ask_to_stop`] and the vectors have ended.
    pub fn wait(mut self) {
        self.join(Duration::ZERO);
    }

    fn end(&mut self, grace: Duration) -> usize {
        self.all.stop(Instant::now() + grace);
        self.join(grace)
    }

    fn join(&mut self, grace: Duration) -> usize {
        for thread in self.threads.drain(..) {
            // What a vector runs is caught; it does not itself panic.
            let _ = thread.join();
        }
        self.all.pool.stop(Instant::now() + grace.max(CALLS_END))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

fn pin(cpu: Option<usize>) -> io::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no CPU has number {cpu}"),
        ));
    }
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The vector that the calling thread is.
#[must_use]
pub fn vector() -> VectorId {
    Core::with(|core| core.id)
}

/// Whether the calling thread is a vector.
#[must_use]
pub fn is_vector() -> bool {
    Core::try_with(|_| ()).is_some()
}

/// How many vectors there are.
#[must_use]
pub fn vectors() -> usize {
    Core::with(|core| core.all.vectors.len())
}

/// Whether another vector has nothing to do just now.
#[must_use]
pub fn another_sleeps() -> bool {
    Core::with(|core| {
        let vectors = core.all.vectors.iter().enumerate();
        vectors.into_iter().any(|(index, vector)| index != core.id.0 && vector.is_sleeping())
    })
}

/// The time at which this turn of the loop began; no system call.
#[must_use]
pub fn now() -> Instant {
    Core::with(|core| core.now.get())
}

/// Runs `future` on this vector, beginning in the next turn. It goes on if the [`Join`] is dropped.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Join<T> {
    Join::spawn(future)
}

/// Polls `future` at once, from within the caller's own poll, and keeps it as a task of this vector if it is
/// pending. Whether it has ended. A panic of it ends it and is counted; the caller goes on.
pub fn run_now(future: Pin<Box<dyn Future<Output = ()>>>) -> bool {
    Core::with(|core| core.run_now(future))
}

/// Lets other tasks of this vector go first, once.
pub fn yield_now() -> YieldNow {
    YieldNow::default()
}

/// Ends at `when`, up to a millisecond late.
pub fn sleep_until(when: Instant) -> Sleep {
    Sleep::until(when)
}

/// Ends after `time`, counted from the [`now`] of this turn.
pub fn sleep(time: Duration) -> Sleep {
    Sleep::until(now() + time)
}

/// What `future` yields if it does within `time`; it is dropped with this one, not before.
pub fn timeout<F: Future>(future: F, time: Duration) -> Timeout<F> {
    Timeout::new(future, now() + time)
}

/// Has `vector` call `what`, in turn with its tasks.
///
/// # Panics
///
/// When there is no such vector.
pub fn post(vector: VectorId, what: impl FnOnce() + Send + 'static) {
    Core::with(|core| core.all.vectors[vector.0].post(Box::new(what)));
}

/// What [`Runtime::stop`] does, without waiting for it.
pub fn ask_to_stop(grace: Duration) {
    Core::with(|core| core.all.stop(Instant::now() + grace));
}

/// Ends when [`Runtime::stop`] or [`ask_to_stop`] is called.
pub async fn stopping() {
    let all = Core::with(|core| core.all.clone());
    loop {
        let waiting = all.stop_called.wait();
        if all.deadline().is_some() {
            return;
        }
        waiting.await;
    }
}

/// What `future` yields; `None` if [`Runtime::stop`] or [`ask_to_stop`] is called first.
pub async fn unless_stopping<T>(future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut stopping) = (std::pin::pin!(future), std::pin::pin!(stopping()));
    std::future::poll_fn(|context| {
        if stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}
