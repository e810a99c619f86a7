# sslh: SSH, HTTP and TLS on one port, by select and by processes.
# packages: sslh openssl curl
# needs: sslh sslh-select openssl curl

setup() {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 3 -subj /CN=localhost 2>/dev/null
    mkdir www
    seq 1 300000 > www/a.txt
    cat >tls.py <<'EOF'
import http.server, os, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('c.pem', 'k.pem')
server = http.server.ThreadingHTTPServer((os.environ['A'], int(os.environ['P4'])), http.server.SimpleHTTPRequestHandler)
server.socket = context.wrap_socket(server.socket, server_side=True)
os.chdir('www')
server.serve_forever()
EOF
}

server3() {
    exec python3 -m http.server --bind $A -d www $P3
}

server4() {
    exec python3 tls.py
}

server() {
    exec sslh-select -f -n -p $A:$P --http $A:$P3 --tls $A:$P4
}

server2() {
    exec sslh -f -n -p $A:$P2 --http $A:$P3 --tls $A:$P4
}

client() {
    for port in $P $P2; do
        for i in 1 2 3; do
            curl -s http://$A:$port/a.txt | sha256sum
            curl -sk https://$A:$port/a.txt | sha256sum
        done
    done
}
