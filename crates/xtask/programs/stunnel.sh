# stunnel in front of Python's http.server.
# packages: stunnel4 openssl apache2-utils curl
# needs: stunnel openssl ab curl

setup() {
    cat >st.conf <<EOF
foreground = yes
pid =
debug = 3
[x]
accept = $A:$P
connect = $A:$P2
cert = $D/c.pem
key = $D/k.pem
EOF
    openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 3 -subj /CN=localhost 2>/dev/null
    mkdir www
    seq 1 300000 > www/a.txt
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec stunnel st.conf
}

client() {
    for i in 1 2 3 4 5; do curl -sk https://$A:$P/a.txt | sha256sum; done
    ab -q -n 100 -c 5 https://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
