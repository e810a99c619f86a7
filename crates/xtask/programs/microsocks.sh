# microsocks: curl through SOCKS5 to Python's http.server.
# packages: microsocks curl
# needs: microsocks curl

setup() {
    mkdir www
    seq 1 300000 > www/a.txt
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec microsocks -i $A -p $P
}

client() {
    for i in 1 2 3 4 5; do curl -s --socks5 $A:$P http://$A:$P2/a.txt | sha256sum; done
    curl -s --socks5 $A:$P http://$A:$P2/[1-5] http://$A:$P2/a.txt -Z -o /dev/null -w '%{http_code}\n' | sort
}
