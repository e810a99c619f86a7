# aria2: a file in eight pieces from Apache httpd, and by BitTorrent.
# packages: aria2 apache2-bin python3
# needs: aria2c apache2 python3
# pause: 1

setup() {
    cat >httpd.conf <<EOF
ServerRoot $D
ServerName localhost
Listen $A:$P
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
PidFile $D/pid
ErrorLog $D/err
User www-data
Group www-data
DocumentRoot $D/www
<Directory $D/www>
Require all granted
</Directory>
EOF
    mkdir www got
    seq 1 3000000 > www/a.txt
    chmod -R a+rX .
    cat >make.py <<'EOF'
import hashlib, os
data = open('www/a.txt', 'rb').read()
size = 65536
pieces = b''.join(hashlib.sha1(data[at:at + size]).digest() for at in range(0, len(data), size))
def coded(x):
    if isinstance(x, int): return b'i%de' % x
    if isinstance(x, bytes): return b'%d:' % len(x) + x
    return b'd' + b''.join(coded(k) + coded(x[k]) for k in sorted(x)) + b'e'
url = ('http://%s:%s/announce' % (os.environ['A'], os.environ['P3'])).encode()
open('a.torrent', 'wb').write(coded({b'announce': url, b'info': {b'length': len(data), b'name': b'a.txt', b'piece length': size, b'pieces': pieces, b'private': 1}}))
EOF
    cat >tracker.py <<'EOF'
import http.server, os, socket, struct
peer = socket.inet_aton(os.environ['A']) + struct.pack('>H', int(os.environ['P2']))
class Tracker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'd8:completei1e10:incompletei1e8:intervali2e5:peers6:' + peer + b'e')
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer((os.environ['A'], int(os.environ['P3'])), Tracker).serve_forever()
EOF
    python3 make.py
}

server() {
    exec apache2 -DFOREGROUND -f $D/httpd.conf
}

server3() {
    exec python3 tracker.py
}

server2() {
    exec aria2c -q --enable-dht=false --bt-enable-lpd=false --listen-port=$P2 -d www -V --seed-ratio=0 a.torrent
}

client() {
    for i in 1 2; do aria2c -q -x 8 -s 8 -k 1M -d got -o b$i.txt http://$A:$P/a.txt; cmp www/a.txt got/b$i.txt && echo same; done
    aria2c -q --enable-dht=false --bt-enable-lpd=false --listen-port=$P4 -d got --seed-time=0 a.torrent
    cmp www/a.txt got/a.txt && echo same
}
