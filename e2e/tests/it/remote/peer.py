"""Both ends of the conversations between two hosts: byte for byte, with the ends that TCP has.

peer.py server ADDRESS PORT MODE     prints its port
peer.py client ADDRESS PORT MODE ARGUMENTS...
"""
import errno, hashlib, os, selectors, socket, struct, sys, threading, time


def pattern(n, seed=1):
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(2048))
    return (block * (n // len(block) + 1))[:n]


def recv_exactly(s, n):
    got = bytearray()
    while len(got) < n:
        chunk = s.recv(min(n - len(got), 1 << 20))
        if not chunk:
            raise EOFError("ended after %d of %d bytes" % (len(got), n))
        got += chunk
    return bytes(got)


def recv_all(s):
    got = bytearray()
    while True:
        chunk = s.recv(1 << 20)
        if not chunk:
            return bytes(got)
        got += chunk


def echo(c):
    while True:
        chunk = c.recv(1 << 16)
        if not chunk:
            return
        c.sendall(chunk)


def ends(c):
    # As echo, and tells how it ended.
    try:
        echo(c)
        print("ended well", flush=True)
    except OSError as e:
        print("ended", type(e).__name__, flush=True)


def digest(c):
    data = recv_all(c)
    c.sendall(b"%d %s\n" % (len(data), hashlib.sha256(data).hexdigest().encode()))


def source(c):
    n = int(recv_exactly(c, 12))
    c.sendall(pattern(n))


def greet(c):
    # The server speaks first.
    c.sendall(b"220 ready\r\n")
    assert recv_all(c) == b"QUIT\r\n"
    c.sendall(b"221 bye\r\n")


def reset(c):
    c.recv(1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def bye(c):
    # Answers, and is gone.
    assert recv_exactly(c, 5) == b"hello"
    c.sendall(b"0123456789")


def names(c):
    c.sendall(repr((c.getsockname(), c.getpeername())).encode())


def slow(c):
    time.sleep(1.0)
    total = 0
    while True:
        chunk = c.recv(3000)
        if not chunk:
            break
        total += len(chunk)
        if total % 7 == 0:
            time.sleep(0.001)
    c.sendall(b"%d" % total)


def urgent(c):
    # Tells where the urgent byte was, and sends one of its own.
    sel = selectors.DefaultSelector()
    sel.register(c, selectors.EVENT_READ)
    poller = __import__("select").poll()
    poller.register(c, 2)  # POLLPRI
    assert poller.poll(60000), "no POLLPRI"
    assert c.recv(1, socket.MSG_OOB) == b"!"
    assert recv_exactly(c, 1000) == b"a" * 500 + b"b" * 500
    c.sendall(b"c" * 500)
    c.send(b"?", socket.MSG_OOB)
    c.sendall(b"d" * 500)
    assert c.recv(1) == b""


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(address, port, mode):
    listener = socket.socket(family(address))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # As Apache and H2O have it: nobody is accepted before there is something to read.
    mode, *late = mode.split("-")
    if late == ["deferred"]:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
    listener.bind((address, port))
    if late[:1] == ["by"]:
        choose(listener, late[1])
    listener.listen(1024)
    if late[:1] == ["later"]:
        choose(listener, late[1])
    if late == ["deferred"]:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
    print(listener.getsockname()[1], flush=True)
    action = globals()[mode]

    def one(c):
        try:
            action(c)
        except OSError as e:
            print("server:", e, file=sys.stderr)
        finally:
            c.close()

    while True:
        c, _ = listener.accept()
        threading.Thread(target=one, args=(c,), daemon=True).start()


def connect(to):
    return socket.create_connection(to, timeout=60)


def c_echo(to, sizes):
    s = connect(to)
    for n in map(int, sizes.split(",")):
        data = pattern(n, n)
        sender = threading.Thread(target=s.sendall, args=(data,))
        sender.start()
        assert recv_exactly(s, n) == data, "echo of %d" % n
        sender.join()
    s.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b""


def c_high(to):
    # A descriptor that is open above the limit stays open, and cannot be made anew.
    import fcntl, resource
    low = socket.socket(family(to[0]))
    s = socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD, 500))
    low.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    s.connect(to)
    for n in (1, 1000, 100000):
        s.sendall(pattern(n))
        assert recv_exactly(s, n) == pattern(n)
    s.shutdown(socket.SHUT_WR)
    assert recv_all(s) == b""


def c_full(to):
    # The engine is known, and then the connection is made, and nothing beside it can be.
    import resource
    first = connect(to)
    first.sendall(b"x")
    assert recv_exactly(first, 1) == b"x"
    s = socket.socket(family(to[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (s.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    is_reset(s, to)


def c_cut(to):
    is_reset(socket.socket(family(to[0])), to)


def is_reset(s, to):
    s.settimeout(60)
    try:
        s.connect(to)
        s.sendall(b"x")
        got = s.recv(1)
        raise AssertionError("no reset but %r" % got)
    except ConnectionResetError:
        pass


def c_digest(to, n):
    n = int(n)
    data = pattern(n)
    s = connect(to)
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    said = recv_all(s).split()
    assert said == [b"%d" % n, hashlib.sha256(data).hexdigest().encode()], said


def c_source(to, n):
    s = connect(to)
    s.sendall(b"%12d" % int(n))
    got = recv_all(s)
    assert got == pattern(int(n)), len(got)


def c_greet(to):
    s = connect(to)
    assert recv_exactly(s, 11) == b"220 ready\r\n"
    s.sendall(b"QUIT\r\n")
    s.shutdown(socket.SHUT_WR)
    assert recv_all(s) == b"221 bye\r\n"


def c_reset(to):
    s = connect(to)
    s.sendall(b"x")
    try:
        got = s.recv(1)
        raise AssertionError("no reset but %r" % got)
    except ConnectionResetError:
        pass


def c_heedless(to):
    # Writes on without reading, though the server has closed: the reset must find it.
    s = connect(to)
    s.sendall(b"hello")
    time.sleep(1)
    sent = 0
    try:
        while sent < 64 << 20:
            sent += s.send(bytes(16384))
            time.sleep(0.01)
        raise AssertionError("no reset")
    except (ConnectionResetError, BrokenPipeError):
        pass
    # What had come before is not lost by it.
    assert recv_exactly(s, 10) == b"0123456789"


def c_bound(to, by):
    # What an interface, or a mark, has been chosen for.
    s = socket.socket(family(to[0]))
    choose(s, by)
    s.settimeout(60)
    s.connect(to)
    talk(s)


def c_talk(to):
    talk(connect(to))


def talk(s):
    for n in (1, 1000, 100000):
        data = pattern(n, n)
        sender = threading.Thread(target=s.sendall, args=(data,))
        sender.start()
        assert recv_exactly(s, n) == data, "echo of %d" % n
        sender.join()
    s.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b""


def choose(s, by):
    if by == "mark":
        s.setsockopt(socket.SOL_SOCKET, 36, 7)  # SO_MARK
    else:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, by.encode() + b"\0")


def c_names(to):
    s = connect(to)
    mine, theirs = s.getsockname(), s.getpeername()
    assert theirs[:2] == to, (theirs, to)
    said = recv_all(s).decode()
    assert said == repr((theirs, mine)), (said, mine, theirs)


def c_urgent(to):
    s = connect(to)
    s.settimeout(None)
    s.sendall(b"a" * 500)
    s.send(b"!", socket.MSG_OOB)
    s.sendall(b"b" * 500)
    poller = __import__("select").poll()
    poller.register(s, 2)
    assert poller.poll(60000), "no POLLPRI"
    assert s.recv(1, socket.MSG_OOB) == b"?"
    assert recv_exactly(s, 1000) == b"c" * 500 + b"d" * 500


def c_slow(to, n):
    s = connect(to)
    s.sendall(pattern(int(n)))
    s.shutdown(socket.SHUT_WR)
    assert recv_all(s) == n.encode()


def c_held(to, n):
    """So many connections at a time, none of which ends before all of them are there and have had an answer."""
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    all = []
    for i in range(int(n)):
        s = connect(to)
        s.sendall(b"%08d" % i)
        all.append(s)
    for i, s in enumerate(all):
        got = recv_exactly(s, 8)
        assert got == b"%08d" % i, (got, i)
    for s in all:
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""


def c_many(to, n):
    """So many connections at a time, each with a few round trips, through one selector."""
    n = int(n)
    sel = selectors.DefaultSelector()
    left = {}
    for i in range(n):
        s = socket.socket(family(to[0]))
        s.setblocking(False)
        code = s.connect_ex(to)
        assert code in (0, errno.EINPROGRESS), code
        sel.register(s, selectors.EVENT_WRITE, i)
        left[s] = 3
    deadline = time.time() + 60
    while left:
        assert time.time() < deadline, "%d connections hang" % len(left)
        for key, events in sel.select(1):
            s, i = key.fileobj, key.data
            if events & selectors.EVENT_WRITE:
                code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                assert code == 0, os.strerror(code)
                assert s.send(b"%08d" % i) == 8
                sel.modify(s, selectors.EVENT_READ, i)
            else:
                got = s.recv(8)
                assert got == b"%08d" % i, (got, i)
                left[s] -= 1
                if left[s]:
                    s.send(b"%08d" % i)
                else:
                    sel.unregister(s)
                    del left[s]
                    s.close()


def c_short(to, n, pause):
    """So many connections, one after the other, each with a request and an answer."""
    for i in range(int(n)):
        s = connect(to)
        s.sendall(b"%08d" % i)
        assert recv_exactly(s, 8) == b"%08d" % i
        s.close()
        time.sleep(float(pause))


def c_turns(to, n):
    s = connect(to)
    for i in range(int(n)):
        s.sendall(b"%08d" % i)
        assert recv_exactly(s, 8) == b"%08d" % i



def c_until(to, path, size="8"):
    """Round trips until a file is there; tells how the connection ended."""
    s = connect(to)
    s.settimeout(30)
    n = 0
    try:
        while not os.path.exists(path):
            data = pattern(int(size), n)
            s.sendall(data)
            assert recv_exactly(s, int(size)) == data
            n += 1
            if n == 1:
                print("going", flush=True)
        print("rounds", n)
    except (OSError, EOFError) as e:
        print("ended", type(e).__name__)


def c_noted(to, verb, *rest):
    """Another verb, by a process that has a place on the board, because it listens: what becomes of its connections is
    counted there."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    globals()["c_" + verb](to, *rest)


if sys.argv[1] == "server":
    serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
else:
    globals()["c_" + sys.argv[4]]((sys.argv[2], int(sys.argv[3])), *sys.argv[5:])
