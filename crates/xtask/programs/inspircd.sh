# InspIRCd: two clients in a channel.
# packages: inspircd
# needs: inspircd
# as: irc

setup() {
    mkdir run
    cat >i.conf <<EOF
<server name="x.y" description="x" network="x" id="00A">
<admin name="a" nick="a" email="a@x.y">
<bind address="$A" port="$P" type="clients">
<connect allow="*" timeout="60" maxchans="20" sendq="1000000" recvq="1000000" softsendq="1000000" hardsendq="2000000" fakelag="no" commandrate="1000000" threshold="10000" limit="5000" localmax="100" globalmax="100" resolvehostnames="no" useident="no">
<path configdir="$D" datadir="$D/run" logdir="$D/run" runtimedir="$D/run">
<pid file="$D/run/pid">
<options prefixquit="Quit: ">
<performance softlimit="100">
<security>
EOF
    cat >c.py <<'EOF'
import os, socket
def client(name):
    s = socket.create_connection((os.environ['A'], int(os.environ['P'])))
    f = s.makefile('rb')
    s.sendall(b'NICK %s\r\nUSER %s 0 * :x\r\n' % (name, name))
    until(s, f, b' 001 ')
    s.sendall(b'JOIN #x\r\n')
    until(s, f, b' 366 ')
    return s, f
def until(s, f, word):
    while True:
        line = f.readline()
        assert line
        if line.startswith(b'PING'): s.sendall(line.replace(b'PING', b'PONG'))
        if word in line: return line
a, fa = client(b'ann')
b, fb = client(b'bob')
total = 0
for n in range(300):
    a.sendall(b'PRIVMSG #x :%d %s\r\n' % (n, b'y' * n))
    total += len(until(b, fb, b'PRIVMSG').split(b' :', 1)[1])
print(total)
EOF
}

server() {
    exec inspircd --config $D/i.conf --nofork
}

client() {
    python3 c.py
}
