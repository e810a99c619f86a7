# systemd-socket-activate: Python's server on a socket that it was handed, and a program for each connection.
# packages: systemd curl socat
# needs: systemd-socket-activate curl socat

setup() {
    cat >s.py <<'EOF'
import http.server, os, socket, socketserver
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    def __init__(self):
        super().__init__(('', 0), http.server.SimpleHTTPRequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=3)
        self.server_name, self.server_port = self.socket.getsockname()
os.chdir('www')
Server().serve_forever()
EOF
    mkdir www
    seq 1 100000 > www/a.txt
}

server2() {
    exec systemd-socket-activate --accept --inetd -l $A:$P2 -E LD_PRELOAD -E SHUNT_DIR cat
}

server() {
    exec systemd-socket-activate -l $A:$P -E LD_PRELOAD -E SHUNT_DIR python3 $D/s.py
}

client() {
    for i in 1 2 3; do curl -s http://$A:$P/a.txt | sha256sum; done
    for i in 1 2 3; do seq 1 100000 | socat -t 5 - TCP:$A:$P2 | sha256sum; done
}
