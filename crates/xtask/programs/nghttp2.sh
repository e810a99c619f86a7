# nghttpd and nghttpx: HTTP/2, and h2load.
# packages: nghttp2-server nghttp2-proxy nghttp2-client curl
# needs: nghttpd nghttpx h2load curl

setup() {
    mkdir www
    seq 1 300000 > www/a.txt
}

server() {
    exec nghttpd --no-tls -a $A -d www $P
}

server2() {
    exec nghttpx --conf=/dev/null "-f$A,$P2;no-tls" "-b$A,$P;;proto=h2" --workers=2 --errorlog-file=/dev/null
}

client() {
    curl -s --http2-prior-knowledge http://$A:$P/a.txt | sha256sum
    curl -s http://$A:$P2/a.txt | sha256sum
    nghttp http://$A:$P/a.txt | sha256sum
    for p in $P $P2; do h2load -n 300 -c 10 -m 5 -t 2 http://$A:$p/a.txt | grep -E '^(requests|status)' | sed 's/,.*in .*//'; done
}
