# Cheroot (CherryPy's server) with threads, and ab.
# packages: python3-cheroot apache2-utils curl
# needs: ab curl python3:cheroot

setup() {
    cat >s.py <<'EOF'
import os
from cheroot.wsgi import Server
def app(e, s):
    n = int(e.get('CONTENT_LENGTH') or 0)
    b = e['wsgi.input'].read(n)
    s('200 OK', [('Content-Type', 'text/plain')])
    return [b'x' * 100000, str(len(b)).encode()]
Server((os.environ['A'], int(os.environ['P'])), app, numthreads=4).start()
EOF
}

server() {
    exec /usr/bin/python3 s.py
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
