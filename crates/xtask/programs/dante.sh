# Dante: curl through SOCKS5 to Python's http.server.
# packages: dante-server curl
# needs: danted curl
# stays: sockets are passed between its processes

setup() {
    cat >d.conf <<EOF
logoutput: $D/log
internal: $A port = $P
external: $A
socksmethod: none
clientmethod: none
user.privileged: root
user.unprivileged: nobody
client pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }
socks pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }
EOF
    mkdir www
    seq 1 300000 > www/a.txt
    chmod a+rx .
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec danted -f $D/d.conf -p $D/pid
}

client() {
    for i in 1 2 3 4 5; do curl -s --socks5 $A:$P http://$A:$P2/a.txt | sha256sum; done
    for i in 1 2 3; do curl -s --socks4 $A:$P http://$A:$P2/a.txt | sha256sum; done
}
