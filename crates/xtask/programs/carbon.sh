# Graphite's Carbon (Twisted): lines and pickles, and its cache asked.
# packages: graphite-carbon
# needs: carbon-cache

setup() {
    mkdir w l
    cat >carbon.conf <<EOF
[cache]
STORAGE_DIR = $D
LOCAL_DATA_DIR = $D/w
LOG_DIR = $D/l
PID_DIR = $D
CONF_DIR = $D
USER =
MAX_CACHE_SIZE = inf
MAX_UPDATES_PER_SECOND = 0
MAX_CREATES_PER_MINUTE = inf
LINE_RECEIVER_INTERFACE = $A
LINE_RECEIVER_PORT = $P
PICKLE_RECEIVER_INTERFACE = $A
PICKLE_RECEIVER_PORT = $P2
CACHE_QUERY_INTERFACE = $A
CACHE_QUERY_PORT = $P3
ENABLE_LOGROTATION = False
CACHE_WRITE_STRATEGY = max
EOF
    printf '[all]\npattern = .*\nretentions = 60s:1h\n' > storage-schemas.conf
    : > storage-aggregation.conf
    cat >c.py <<'EOF'
import os, pickle, socket, struct, time
A, P, P2, P3 = (os.environ[n] for n in ('A', 'P', 'P2', 'P3'))
now = int(time.time())
s = socket.create_connection((A, int(P)))
s.sendall(b''.join(b'a.b%d %d %d\n' % (n, n, now) for n in range(5000)))
t = socket.create_connection((A, int(P2)))
for k in range(50):
    data = pickle.dumps([('c.d%d.e%d' % (k, n), (now, n)) for n in range(100)], 2)
    t.sendall(struct.pack('!L', len(data)) + data)
q = socket.create_connection((A, int(P3)))
f = q.makefile('rb')
def asked(name):
    data = pickle.dumps({'type': 'cache-query', 'metric': name}, 2)
    q.sendall(struct.pack('!L', len(data)) + data)
    return pickle.loads(f.read(struct.unpack('!L', f.read(4))[0]))
seen = 0
for n in range(200):
    seen += isinstance(asked('a.b%d' % n)['datapoints'], list)
print(seen)
for _ in range(300):
    if all(os.path.exists('w/%s.wsp' % name) for name in ('a/b4999', 'c/d49/e99')): break
    time.sleep(0.1)
print(sum(len(files) for _, _, files in os.walk('w/a')) > 4990)
EOF
}

server() {
    exec /usr/bin/python3 /usr/bin/carbon-cache --config=$D/carbon.conf --nodaemon start
}

client() {
    python3 c.py
}
