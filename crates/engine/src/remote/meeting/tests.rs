use super::*;

const NOW: u64 = 1_000_000_000;

type Marks = Arc<Mutex<Vec<(IpAddr, bool)>>>;

/// A host of the network of one test.
fn host(network: u8, number: u8) -> IpAddr {
    IpAddr::from([127, 93, network, number])
}

/// What the thread has, at the first address of a network, and what it has said about other hosts.
fn here(network: u8) -> (Here, Marks) {
    let marks = Marks::default();
    let marked = Arc::clone(&marks);
    let parts = Parts {
        inbox: Arc::new(Inbox::new().unwrap()),
        networks: vec!["127.93.0.0/16".parse().unwrap()],
        addresses: vec![host(network, 1)],
        vectors: Vec::new(),
        listens: Box::new(|_| true),
        mark: Box::new(move |host, on| held(&marked).push((host, on))),
    };
    (Here::new(parts).unwrap(), marks)
}

/// Another host connects, and it is a link.
fn link(here: &mut Here, from: IpAddr, now: u64) -> TcpStream {
    let before = here.links.len();
    let stream = connect((from, here.parts.addresses[0])).unwrap();
    while here.links.len() == before {
        here.accept(now);
    }
    stream
}

/// Whether a link is closed by the other end, of which nothing else comes.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 1]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn a_host_has_a_few_links_and_leaves_room_for_others() {
    let (mut here, _) = here(1);
    let _kept: Vec<_> = (0..LINKS_OF_HOST).map(|_| link(&mut here, host(1, 2), NOW)).collect();
    let mut beyond = connect((host(1, 2), host(1, 1))).unwrap();
    while !is_closed(&mut beyond) {
        here.accept(NOW);
    }
    assert_eq!(here.links.len(), LINKS_OF_HOST);
    let _other = link(&mut here, host(1, 3), NOW);
}

#[test]
fn who_does_not_greet_is_no_link_for_long() {
    let (mut here, marks) = here(2);
    assert_eq!(here.next_due(), None);
    let mut silent = link(&mut here, host(2, 2), NOW);
    let mut polite = link(&mut here, host(2, 3), NOW);
    polite.write_all(&GREETING).unwrap();
    while here.register.addresses().count() == 0 {
        here.links.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| here.on_link(id));
    }
    assert_eq!(here.next_due(), Some(NOW + GREETING_NS));
    here.tick(NOW + GREETING_NS - 1);
    assert!(!is_closed(&mut silent));
    here.tick(NOW + GREETING_NS);
    assert_eq!((here.links.len(), here.next_due()), (1, None));
    while !is_closed(&mut silent) {}
    let mut greeting = [0; GREETING.len()];
    polite.read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, GREETING);
    assert!(!is_closed(&mut polite));
    assert_eq!(*held(&marks), [(host(2, 3), true), (host(2, 2), false)]);
}

#[test]
fn the_last_link_to_a_host_that_has_not_greeted_takes_the_mark_with_it() {
    let (mut here, marks) = here(3);
    // It is connected to, and connects itself.
    let listener = TcpListener::bind((host(3, 2), PORT)).unwrap();
    here.add(connect((host(3, 1), host(3, 2))).unwrap(), true, NOW).unwrap();
    let _both = (listener.accept().unwrap(), link(&mut here, host(3, 2), NOW));
    let mut ids: Vec<_> = here.links.keys().copied().collect();
    ids.sort_by_key(|id| id.0);
    assert_eq!(*held(&marks), [(host(3, 2), true)]);
    here.close(ids[0]);
    assert_eq!(*held(&marks), [(host(3, 2), true)]);
    here.close(ids[1]);
    assert_eq!(*held(&marks), [(host(3, 2), true), (host(3, 2), false)]);
}

#[test]
fn while_nothing_can_be_accepted_nobody_is_woken_for_it() {
    let (mut here, _) = here(4);
    here.pause(NOW);
    let _stream = connect((host(4, 2), host(4, 1))).unwrap();
    let mut events = Events::new(8);
    here.poller.wait(&mut events, Some(20_000_000));
    assert!(events.is_empty());
    assert_eq!(here.next_due(), Some(NOW + PAUSE_NS));
    here.tick(NOW + PAUSE_NS);
    here.poller.wait(&mut events, None);
    assert_eq!(events.iter().map(|event| event.token).collect::<Vec<_>>(), [LISTENER]);
    assert_eq!(here.next_due(), None);
}

#[test]
fn a_link_to_a_host_that_is_gone_ends_by_itself() {
    let (mut here, _) = here(5);
    let _stream = link(&mut here, host(5, 2), NOW);
    let ours = &here.links.values().next().unwrap().stream;
    assert_eq!(sockopt::tcp_user_timeout(ours), Ok(UNHEARD_MS));
    assert_eq!(sockopt::tcp_keepidle(ours), Ok(SILENCE));
}
