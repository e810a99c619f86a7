# xinetd: its own services, one that waits, and a program for each connection.
# packages: xinetd socat
# needs: xinetd socat
# stays: another program than the one that accepts uses the socket

setup() {
    cat >x.conf <<EOF
defaults
{
    log_type = FILE $D/log
    bind = $A
}
service echo
{
    type = INTERNAL UNLISTED
    id = echo-stream
    socket_type = stream
    protocol = tcp
    wait = no
    user = root
    port = $P2
}
service lines
{
    type = UNLISTED
    socket_type = stream
    protocol = tcp
    wait = no
    user = nobody
    server = /bin/sed
    server_args = -u s/^/x/
    port = $P3
}
service waits
{
    type = UNLISTED
    socket_type = stream
    protocol = tcp
    wait = yes
    user = root
    server = /usr/bin/python3
    server_args = $D/s.py
    port = $P
}
EOF
    cat >s.py <<'EOF'
import socket
listener = socket.socket(fileno=0)
for _ in range(3):
    c, _ = listener.accept()
    with c, c.makefile('rwb') as f:
        for line in f:
            f.write(line[::-1].strip() + b'\n')
            f.flush()
EOF
}

server() {
    exec xinetd -dontfork -f $D/x.conf
}

client() {
    for port in $P $P2 $P3; do
        for i in 1 2 3 4 5 6 7; do
            seq 1 30000 | socat -t 5 - TCP:$A:$port | sha256sum
        done
    done
}
