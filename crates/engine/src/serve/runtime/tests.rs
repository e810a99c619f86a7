use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use super::*;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn config(vectors: usize, driver: Driver) -> Config {
    Config { vectors, driver, offload_threads: 4, ..Config::default() }
}

/// Runs `test` on each of `vectors` vectors, once per driver, until all have ended; a panic of one is ours.
fn on_each_driver<F>(vectors: usize, test: impl Fn() -> F + Send + Sync + Copy + 'static)
where
    F: Future<Output = ()> + 'static,
{
    for driver in drivers() {
        let (done, ended) = mpsc::channel();
        let runtime = Runtime::start(&config(vectors, driver), move |_| {
            let done = done.clone();
            async move {
                let end = spawn(test()).await;
                let _ = done.send(end);
            }
        });
        let runtime = runtime.unwrap();
        assert_eq!(runtime.driver(), driver);
        for _ in 0..vectors {
            let end = ended.recv_timeout(Duration::from_secs(60));
            assert_eq!(end, Ok(Ok(())), "a task of the test panicked or hangs ({driver:?})");
        }
        runtime.stop(Duration::ZERO);
    }
}

fn drivers() -> Vec<Driver> {
    match sys::uring::Ring::new(8) {
        Ok(_) => vec![Driver::Epoll, Driver::Uring],
        Err(why) => {
            println!("skipped: {why}");
            vec![Driver::Epoll]
        }
    }
}

async fn echo(socket: Socket) {
    let mut buf = vec![0; 16 << 10];
    loop {
        match socket.recv(&mut buf).await {
            Ok(n) if n > 0 => {
                socket.send_all(&mut [IoSlice::new(&buf[..n])], false).await.unwrap();
            }
            _ => return,
        }
    }
}

async fn serve_echo() -> SocketAddr {
    let listener = Listener::bind(LOCAL, 1024).unwrap();
    let address = listener.local_addr().unwrap();
    drop(spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            run_now(Box::pin(echo(socket)));
        }
    }));
    address
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at * 31 + seed) % 251).unwrap()).collect()
}

#[test]
fn many_connections_get_back_what_they_sent() {
    on_each_driver(2, || async {
        let address = serve_echo().await;
        let clients = (0..100).map(|seed| {
            spawn(async move {
                let socket = Socket::connect(address).await.unwrap();
                for round in 0..20 {
                    let sent = pattern(seed + round, 1 + seed * 97 + round);
                    let (front, back) = sent.split_at(sent.len() / 2);
                    let mut parts = [IoSlice::new(front), IoSlice::new(&[]), IoSlice::new(back)];
                    socket.send_all(&mut parts, false).await.unwrap();
                    let mut got = vec![0; sent.len()];
                    socket.recv_exact(&mut got, || {}).await.unwrap();
                    assert!(got == sent);
                }
                socket.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(socket.recv(&mut [0; 1]).await.unwrap(), 0, "the end comes back too");
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    });
}

#[test]
fn what_is_received_into_a_lent_buffer_is_all_that_was_sent() {
    on_each_driver(1, || async {
        let address = serve_echo().await;
        let socket = Socket::connect(address).await.unwrap();
        let mut buf = vec![0; 5000];
        for round in 0..200 {
            let sent = pattern(round, 1 + round * 137);
            socket.send_all(&mut [IoSlice::new(&sent)], false).await.unwrap();
            let mut got = Vec::new();
            while got.len() < sent.len() {
                let n;
                (buf, n) = socket.recv_owned(buf, 10..4106).await;
                got.extend_from_slice(&buf[10..10 + n.unwrap()]);
            }
            assert!(got == sent && buf[..10] == [0; 10] && buf[4106..] == [0; 894]);
        }
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        for _ in 0..3 {
            let n;
            (buf, n) = socket.recv_owned(buf, 0..100).await;
            assert_eq!(n.unwrap(), 0);
        }
    });
}

#[test]
fn threads_that_may_block_are_not_bound_to_the_cpu_of_a_vector() {
    let free = rustix::thread::sched_getaffinity(None).unwrap();
    let (done, ended) = mpsc::channel();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| free.is_set(*cpu)).unwrap();
    let config = Config { pin: Some(vec![first]), ..config(1, Driver::Epoll) };
    let runtime = Runtime::start(&config, move |_| {
        let done = done.clone();
        async move {
            let here = rustix::thread::sched_getaffinity(None).unwrap().count();
            let there = offload(|| rustix::thread::sched_getaffinity(None).unwrap().count()).await;
            done.send((here, there)).unwrap();
        }
    })
    .unwrap();
    let counts = ended.recv_timeout(Duration::from_secs(30));
    assert_eq!(counts, Ok((1, free.count())));
    runtime.stop(Duration::ZERO);
    let nowhere = Config { pin: Some(vec![1 << 20]), ..config };
    assert!(Runtime::start(&nowhere, |_| async {}).is_err());
}

#[test]
fn more_than_buffers_hold_goes_through_both_ways_at_once() {
    on_each_driver(1, || async {
        let address = serve_echo().await;
        let socket = Rc::new(Socket::connect(address).await.unwrap());
        let sent = Rc::new(pattern(7, 24 << 20));
        let sending = spawn({
            let (socket, sent) = (socket.clone(), sent.clone());
            async move { socket.send_all(&mut [IoSlice::new(&sent)], false).await.unwrap() }
        });
        let mut got = vec![0; sent.len()];
        socket.recv_exact(&mut got, || {}).await.unwrap();
        assert!(got == *sent);
        sending.await.unwrap();
        let mut peeked = [0; 2];
        socket.send_all(&mut [IoSlice::new(b"ab")], false).await.unwrap();
        while socket.peek(&mut peeked).await.unwrap() < 2 {}
        assert_eq!((&peeked, socket.queued().unwrap()), (b"ab", 2));
        assert_eq!(socket.try_recv(&mut peeked).unwrap(), 2);
        let empty = socket.try_recv(&mut peeked).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn a_reset_connection_is_told_to_reader_and_writer() {
    on_each_driver(1, || async {
        let listener = Listener::bind(LOCAL, 8).unwrap();
        let client = Socket::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, from) = listener.accept().await.unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        assert_eq!(server.peer_addr().unwrap(), from);
        let reading = spawn(async move { server.recv(&mut [0; 8]).await });
        yield_now().await;
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let error = reading.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let refused = listener.local_addr().unwrap();
        drop(listener);
        // A listener that is gone refuses; with io_uring it may be gone some turns later.
        let until = Instant::now() + Duration::from_secs(10);
        let error = loop {
            match Socket::connect(refused).await {
                Err(error) => break error,
                Ok(_) => assert!(Instant::now() < until, "it is still there"),
            }
            sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_listener_can_be_given() {
    on_each_driver(1, || async {
        let std = std::net::TcpListener::bind(LOCAL).unwrap();
        let address = std.local_addr().unwrap();
        let listener = Listener::from_fd(OwnedFd::from(std)).unwrap();
        let client = spawn(Socket::connect(address));
        let (_server, from) = listener.accept().await.unwrap();
        assert_eq!(client.await.unwrap().unwrap().local_addr().unwrap(), from);
        let not_listening = std::net::UdpSocket::bind(LOCAL).unwrap();
        assert!(Listener::from_fd(OwnedFd::from(not_listening)).is_err());
    });
}

#[test]
fn dropping_a_wait_leaves_nothing_behind() {
    on_each_driver(1, || async {
        let address = serve_echo().await;
        for _ in 0..200 {
            let socket = Socket::connect(address).await.unwrap();
            let mut byte = [0; 1];
            let waited = timeout(socket.recv(&mut byte), Duration::from_millis(1)).await;
            assert!(waited.is_err(), "nothing was sent");
            socket.send_all(&mut [IoSlice::new(b"x")], false).await.unwrap();
            assert_eq!(socket.recv(&mut byte).await.unwrap(), 1);
            drop(spawn(async move { socket.recv(&mut [0; 1]).await.map(drop) }));
            yield_now().await;
        }
        assert!(Core::with(|core| core.timers.borrow().next()).is_none());
    });
}

#[test]
fn timers_end_in_order_and_not_before_their_time() {
    on_each_driver(1, || async {
        let order = Rc::new(RefCell::new(Vec::new()));
        // So much later that all of them wait by then.
        let start = Instant::now() + Duration::from_secs(1);
        let sleeps = [30, 10, 20, 0, 10].map(|ms| {
            let order = order.clone();
            spawn(async move {
                let end = start + Duration::from_millis(ms);
                sleep_until(end).await;
                assert!(Instant::now() >= end);
                order.borrow_mut().push(ms);
            })
        });
        for sleep in sleeps {
            sleep.await.unwrap();
        }
        assert_eq!(*order.borrow(), [0, 10, 10, 20, 30]);
        assert_eq!(timeout(async { 5 }, Duration::ZERO).await, Ok(5));
        let never = std::future::pending::<()>();
        assert_eq!(timeout(never, Duration::from_millis(2)).await, Err(Elapsed));
        let mut again = sleep(Duration::from_secs(1000));
        assert!(poll_once(&mut again).is_pending());
        again.reset(Instant::now());
        again.await;
        assert!(Core::with(|core| core.timers.borrow().next()).is_none());
    });
}

fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn calls_that_block_run_elsewhere_and_together() {
    on_each_driver(1, || async {
        // Each waits for all others: one after the other they would not meet.
        let here = Arc::new(AtomicUsize::new(0));
        let meetings = (0..4).map(|_| {
            let here = here.clone();
            spawn(offload(move || {
                here.fetch_add(1, Ordering::AcqRel);
                let until = Instant::now() + Duration::from_secs(30);
                while here.load(Ordering::Acquire) < 4 && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                here.load(Ordering::Acquire)
            }))
        });
        for meeting in meetings.collect::<Vec<_>>() {
            assert_eq!(meeting.await, Ok(4), "one after the other");
        }
        let many = (0..1000).map(|n| spawn(offload(move || n))).collect::<Vec<_>>();
        for (n, one) in many.into_iter().enumerate() {
            assert_eq!(one.await, Ok(n));
        }
        assert!(Core::with(|core| core.all.pool.threads()) <= 4);
        // Not awaited: it is called all the same.
        let (tell, told) = oneshot();
        drop(offload(move || tell.send(1)));
        assert_eq!(told.await, Ok(1));
    });
}

#[test]
fn what_is_offered_does_not_pile_up() {
    let pool = Pool::new(1);
    let (begun, has_begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    assert!(pool.offer(Box::new(move || {
        begun.send(()).unwrap();
        goes_on.recv().unwrap();
    })));
    has_begun.recv().unwrap();
    let (done, all_done) = mpsc::channel();
    let work = |number| {
        let done = done.clone();
        Box::new(move || done.send(number).unwrap())
    };
    assert!(!pool.offer(work(1)), "the one thread is at something");
    pool.submit(work(2));
    assert!(!pool.offer(work(3)), "something waits for it already");
    go_on.send(()).unwrap();
    assert_eq!(pool.stop(Instant::now() + Duration::from_secs(60)), 0);
    drop(done);
    assert_eq!(all_done.iter().collect::<Vec<_>>(), [2]);
}

#[test]
fn a_panic_ends_its_task_and_nothing_else() {
    on_each_driver(1, || async {
        let lost = spawn(async { panic!("a test of panics") }).await;
        assert_eq!(lost, Err::<(), _>(Lost));
        let lost = spawn(offload(|| panic!("a test of panics elsewhere"))).await;
        assert_eq!(lost, Err::<(), _>(Lost));
        assert!(run_now(Box::pin(async { panic!("a test of panics at once") })));
        post(vector(), || panic!("a test of posted panics"));
        yield_now().await;
        yield_now().await;
        assert_eq!(Core::with(|core| core.shared.counters().panics), 4);
    });
}

#[test]
fn a_task_can_be_cancelled_also_by_itself() {
    on_each_driver(1, || async {
        let guard = Rc::new(());
        let held = guard.clone();
        let waits = spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        assert_eq!(Rc::strong_count(&guard), 2);
        waits.cancel();
        assert_eq!(Rc::strong_count(&guard), 1);
        assert_eq!(waits.await, Err(Lost));
        let own = Rc::new(RefCell::new(None::<Join<()>>));
        let (seen, past) = (own.clone(), Rc::new(Cell::new(false)));
        let told = past.clone();
        *own.borrow_mut() = Some(spawn(async move {
            seen.borrow().as_ref().unwrap().cancel();
            yield_now().await;
            told.set(true);
        }));
        for _ in 0..4 {
            yield_now().await;
        }
        assert!(!past.get());
        // Its place is free again, and who comes there is not taken for it.
        let next = spawn(async {});
        own.borrow().as_ref().unwrap().cancel();
        assert_eq!(next.await, Ok(()));
    });
}

#[test]
fn what_is_run_now_has_run_when_that_returns() {
    on_each_driver(1, || async {
        let ran = Rc::new(Cell::new(0));
        let (told, go) = (ran.clone(), Event::new());
        assert!(run_now(Box::pin(async move { told.set(1) })));
        assert_eq!(ran.get(), 1);
        let (told, going) = (ran.clone(), go.wait());
        assert!(!run_now(Box::pin(async move {
            told.set(2);
            going.await;
            told.set(3);
        })));
        assert_eq!(ran.get(), 2);
        go.notify_all();
        yield_now().await;
        yield_now().await;
        assert_eq!(ran.get(), 3);
    });
}

#[test]
fn no_wake_up_between_vectors_is_lost() {
    // Each round trip is two wake-ups of a vector that is about to sleep.
    let spins = [Duration::ZERO, Duration::from_micros(50)];
    for (driver, spin) in drivers().into_iter().flat_map(|d| spins.map(|s| (d, s))) {
        let queues = [Queue::new(1 << 20), Queue::new(1 << 20)];
        let (done, ended) = mpsc::channel();
        let runtime = Runtime::start(&Config { spin, ..config(2, driver) }, move |id| {
            let (queues, done) = (queues.clone(), done.clone());
            async move {
                let (mine, other) = (&queues[id.0], &queues[1 - id.0]);
                if id.0 == 0 {
                    other.try_push(0_u32, 4).unwrap();
                }
                while let Some(n) = mine.pop().await {
                    if n == 20_000 {
                        other.close();
                        break;
                    }
                    other.try_push(n + 1, 4).unwrap();
                }
                done.send(()).unwrap();
            }
        })
        .unwrap();
        for _ in 0..2 {
            ended.recv_timeout(Duration::from_secs(300)).expect("a wake-up was lost");
        }
        let counters = runtime.counters(VectorId(0));
        assert!(counters.remote > 0);
        // Whether a vector that may spin ever gets to it is a matter of how the two are scheduled.
        assert!(!spin.is_zero() || counters.spins == 0);
        runtime.stop(Duration::ZERO);
    }
}

#[test]
fn an_event_from_any_thread_ends_all_waits() {
    on_each_driver(2, || async {
        for _ in 0..500 {
            let (event, is_so) = (Event::new(), Arc::new(AtomicBool::new(false)));
            let waiters = (0..3).map(|_| {
                let (event, is_so) = (event.clone(), is_so.clone());
                spawn(async move {
                    loop {
                        let waiting = event.wait();
                        if is_so.load(Ordering::Acquire) {
                            return;
                        }
                        waiting.await;
                    }
                })
            });
            let waiters: Vec<_> = waiters.collect();
            let other = VectorId((vector().0 + 1) % vectors());
            post(other, move || {
                is_so.store(true, Ordering::Release);
                event.notify_all();
            });
            for waiter in waiters {
                timeout(waiter, Duration::from_secs(20)).await.unwrap().unwrap();
            }
        }
    });
}

#[test]
fn a_queue_takes_no_more_than_its_weight() {
    on_each_driver(1, || async {
        let queue = Queue::new(10);
        queue.try_push('a', 100).unwrap();
        assert_eq!(queue.try_push('b', 1), Err(Refused::Full('b')));
        queue.push_over('b', 2).unwrap();
        let pushing = spawn({
            let queue = queue.clone();
            async move { queue.push('c', 9).await }
        });
        yield_now().await;
        yield_now().await;
        assert_eq!((queue.len(), queue.weight()), (2, 102));
        assert_eq!(queue.pop().await, Some('a'));
        yield_now().await;
        assert_eq!(queue.pop().await, Some('b'));
        assert_eq!(pushing.await, Ok(Ok(())));
        queue.close();
        assert_eq!(queue.try_push('d', 0), Err(Refused::Closed('d')));
        assert_eq!((queue.pop().await, queue.pop().await), (Some('c'), None));
        assert!(queue.is_empty());
    });
}

#[test]
fn a_budget_is_given_in_order_and_comes_back() {
    on_each_driver(1, || async {
        let budget = Budget::new(10);
        let mut first = budget.take(6).await;
        let mut large = Box::pin(budget.take(9));
        assert!(poll_once(&mut large).is_pending());
        assert!(budget.try_take(1).is_none(), "it would go before who waits");
        let mut small = Box::pin(budget.take(1));
        assert!(poll_once(&mut small).is_pending());
        first.shrink(2);
        assert_eq!((first.amount(), budget.free()), (2, 8));
        assert!(poll_once(&mut large).is_pending());
        drop(large);
        let small = small.await;
        drop(first);
        assert_eq!(budget.free(), 9);
        let all = spawn(budget.take(1000));
        yield_now().await;
        drop(small);
        assert_eq!(all.await.unwrap().amount(), 10, "more than there is means all");
        assert_eq!(budget.free(), 10);
    });
}

#[test]
fn files_are_read_and_written() {
    on_each_driver(1, || async {
        // On disk as a rule, and in memory.
        files_in(&std::env::temp_dir()).await;
        files_in(std::path::Path::new("/dev/shm")).await;
    });
}

async fn files_in(folder: &std::path::Path) {
    let file = Arc::new(OwnedFd::from(tempfile::tempfile_in(folder).unwrap()));
    let sent = pattern(3, 300_000);
    let (sent, n) = write_at(file.clone(), sent, 0..300_000, 5).await;
    assert_eq!(n.unwrap(), 300_000);
    fdatasync(file.clone()).await.unwrap();
    fsync(file.clone()).await.unwrap();
    let mut reads = Vec::new();
    for at in 0..8_usize {
        reads.push(spawn(read_at(file.clone(), vec![9; 40_000], 1..39_001, 5 + at as u64)));
    }
    for (at, read) in reads.into_iter().enumerate() {
        let (got, n) = read.await.unwrap();
        let n = n.unwrap();
        assert!(n > 0 && got[1..=n] == sent[at..at + n]);
        assert_eq!((got[0], got[39_001]), (9, 9), "outside of the range");
    }
    let (_, n) = read_at(file.clone(), vec![0; 8], 0..8, 300_005).await;
    assert_eq!(n.unwrap(), 0, "the end");
    let (read_end, write_end) = io::pipe().unwrap();
    let (_, n) = read_at(Arc::new(read_end.into()), vec![0; 8], 0..8, 0).await;
    assert!(n.is_err(), "a pipe has no places");
    let (_, n) = write_at(Arc::new(write_end.into()), vec![0; 8], 0..8, 0).await;
    assert!(n.is_err());
}

#[test]
fn stop_asks_first_and_then_insists() {
    for driver in drivers() {
        let heard = Arc::new(AtomicUsize::new(0));
        let told = heard.clone();
        let runtime = Runtime::start(&config(2, driver), move |_| {
            let told = told.clone();
            async move {
                drop(spawn(std::future::pending::<()>()));
                stopping().await;
                told.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        let start = Instant::now();
        runtime.stop(Duration::from_millis(100));
        assert_eq!(heard.load(Ordering::Relaxed), 2);
        assert!(start.elapsed() >= Duration::from_millis(100), "a task did not end by itself");
        let runtime = Runtime::start(&config(2, driver), |_| stopping()).unwrap();
        let start = Instant::now();
        runtime.stop(Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "nobody was left to wait for");
        let by_a_task = Runtime::start(&config(2, driver), |id| async move {
            if id.0 == 1 {
                ask_to_stop(Duration::from_secs(60));
            }
            stopping().await;
        });
        by_a_task.unwrap().wait();
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

/// As of a file system that does not answer.
#[test]
fn calls_that_do_not_come_back_are_left_at_the_end() {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Arc::new(std::sync::Mutex::new(goes_on));
    let runtime = Runtime::start(&config(1, Driver::Auto), move |_| {
        let (begun, goes_on) = (begun.clone(), goes_on.clone());
        async move {
            for _ in 0..3 {
                let (begun, goes_on) = (begun.clone(), goes_on.clone());
                drop(offload(move || {
                    begun.send(()).unwrap();
                    // The others wait for who waits.
                    let _ = goes_on.lock().map(|goes_on| goes_on.recv());
                }));
            }
        }
    });
    for _ in 0..3 {
        has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(runtime.unwrap().stop(Duration::from_millis(1))));
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(3));
    drop(go_on);
}

#[test]
fn an_operation_that_is_dropped_lets_go_of_what_it_owned() {
    if !drivers().contains(&Driver::Uring) {
        return;
    }
    let (done, ended) = mpsc::channel();
    let runtime = Runtime::start(&config(1, Driver::Uring), move |_| {
        let done = done.clone();
        async move {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let fd = Arc::new(OwnedFd::from(ours));
            let recv = || {
                let op = sys::uring::Op::Recv { fd: fd.clone(), buf: vec![0; 64], range: 0..64 };
                Core::with(|core| core.reactor.operate(op)).ok().unwrap()
            };
            let mut operations: Vec<_> = (0..100).map(|_| recv()).collect();
            assert!(poll_once(&mut operations[0]).is_pending());
            operations.truncate(50);
            sleep(Duration::from_millis(2)).await;
            drop(operations);
            let start = Instant::now();
            while Arc::strong_count(&fd) > 1 && start.elapsed() < Duration::from_secs(10) {
                sleep(Duration::from_millis(1)).await;
            }
            let left = Arc::strong_count(&fd);
            // One is left to the end of the ring, and one never begins.
            drop(spawn(recv()));
            yield_now().await;
            yield_now().await;
            drop(theirs);
            done.send(left).unwrap();
        }
    });
    let runtime = runtime.unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(30)), Ok(1));
    runtime.stop(Duration::ZERO);
}

#[test]
fn a_socket_that_is_ever_ready_does_not_starve_others() {
    on_each_driver(1, || async {
        let listener = Listener::bind(LOCAL, 8).unwrap();
        let client = Socket::connect(listener.local_addr().unwrap()).await.unwrap();
        drop(listener.accept().await.unwrap());
        let (over, seen) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0_u64)));
        let (is_over, count) = (over.clone(), seen.clone());
        let busy = spawn(async move {
            let mut buf = vec![0; 1];
            while !is_over.get() {
                assert_eq!(client.recv(&mut buf).await.unwrap(), 0);
                let n;
                (buf, n) = client.recv_owned(buf, 0..1).await;
                assert_eq!(n.unwrap(), 0);
                count.set(count.get() + 2);
            }
        });
        sleep(Duration::from_millis(5)).await;
        over.set(true);
        busy.await.unwrap();
        assert!(seen.get() > 0);
    });
}
