# lighttpd, and ab.
# packages: lighttpd apache2-utils curl
# needs: lighttpd ab curl

setup() {
    cat >l.conf <<EOF
server.document-root = "$D/www"
server.port = $P
server.bind = "$A"
EOF
    mkdir www
    seq 1 100000 > www/a.txt
}

server() {
    exec lighttpd -D -f $D/l.conf
}

client() {
    curl -s http://$A:$P/a.txt | sha256sum
    ab -q -n 2000 -c 20 -k http://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
