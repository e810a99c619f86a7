# Kamailio over TCP: requests of four at once.
# packages: kamailio
# needs: kamailio
# stays: sockets are passed between its processes

setup() {
    cat >k.cfg <<EOF
#!KAMAILIO
children=2
tcp_children=3
auto_aliases=no
listen=tcp:$A:$P
disable_core_dump=yes
mpath="/usr/lib/x86_64-linux-gnu/kamailio/modules/"
loadmodule "sl.so"
loadmodule "pv.so"
loadmodule "textops.so"
request_route {
    append_to_reply("X-Size: \$ml\r\n");
    sl_send_reply("200", "OK");
}
EOF
    sed -i "s,/usr/lib/x86_64-linux-gnu,$(dirname "$(find /usr/lib -name kamailio -path '*-linux-gnu/*' | head -1)")," k.cfg
    cat >c.py <<'EOF'
import os, socket, threading
def one(k):
    s = socket.create_connection((os.environ['A'], int(os.environ['P'])))
    f = s.makefile('rb')
    for n in range(200):
        body = b'x' * (n * 20)
        s.sendall(b'OPTIONS sip:a@x SIP/2.0\r\nVia: SIP/2.0/TCP y;branch=z9hG4bK%d-%d\r\nFrom: <sip:b@y>;tag=1\r\nTo: <sip:a@x>\r\nCall-ID: %d\r\nCSeq: %d OPTIONS\r\nContent-Length: %d\r\n\r\n' % (k, n, k, n + 1, len(body)) + body)
        lines = []
        while (line := f.readline().strip()):
            lines.append(line)
        assert lines[0] == b'SIP/2.0 200 OK' and b'CSeq: %d OPTIONS' % (n + 1) in lines, lines
        assert any(line.startswith(b'X-Size') for line in lines), lines
threads = [threading.Thread(target=one, args=(k,)) for k in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print('ok')
EOF
}

server() {
    exec kamailio -DD -E -f $D/k.cfg -P $D/pid -Y $D
}

client() {
    python3 c.py
}
