# Prometheus (Go), which asks a server in Python.
# packages: prometheus curl
# needs: prometheus curl
# stays: Go asks the kernel without the C library

setup() {
    cat >p.yml <<EOF
global: { scrape_interval: 1s }
scrape_configs: [ { job_name: x, static_configs: [ { targets: [ "$A:$P2" ] } ] } ]
EOF
    cat >s.py <<'EOF'
import http.server, os
class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = b''.join(b'x{n="%d"} %d\n' % (n, n) for n in range(2000))
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer((os.environ['A'], int(os.environ['P2'])), Server).serve_forever()
EOF
}

server2() {
    exec python3 s.py
}

server() {
    exec prometheus --config.file=p.yml --storage.tsdb.path=$D/db --web.listen-address=$A:$P --log.level=error
}

client() {
    for i in $(seq 1 100); do curl -s "http://$A:$P/api/v1/query?query=count(x)" | grep -q '"2000"' && break; sleep 0.2; done
    for query in 'sum(x)' 'count(x)' 'up'; do
        curl -s http://$A:$P/api/v1/query --data-urlencode "query=$query" | grep -oE '"[0-9]+"\]'
    done
}
