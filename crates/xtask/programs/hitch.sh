# Hitch in front of Python's http.server, and ab.
# packages: hitch openssl apache2-utils curl
# needs: hitch openssl ab curl

setup() {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 3 -subj /CN=localhost 2>/dev/null
    cat k.pem c.pem > both.pem
    cat >h.conf <<EOF
frontend = "[$A]:$P"
backend = "[$A]:$P2"
pem-file = "$D/both.pem"
workers = 2
user = "nobody"
quiet = on
EOF
    mkdir www
    seq 1 300000 > www/a.txt
    chmod -R a+rX .
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec hitch --config=$D/h.conf
}

client() {
    for i in 1 2 3 4 5; do curl -sk https://$A:$P/a.txt | sha256sum; done
    ab -q -n 100 -c 5 https://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
