# tinyproxy: a proxy, and CONNECT.
# packages: tinyproxy-bin curl
# needs: tinyproxy curl

setup() {
    cat >t.conf <<EOF
Port $P
Listen $A
Timeout 60
MaxClients 50
EOF
    mkdir www
    seq 1 300000 > www/a.txt
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec tinyproxy -d -c t.conf
}

client() {
    for i in 1 2 3; do curl -s -x http://$A:$P http://$A:$P2/a.txt | sha256sum; curl -s -p -x http://$A:$P http://$A:$P2/a.txt | sha256sum; done
}
