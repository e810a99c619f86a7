# Gunicorn with gevent.
# packages: gunicorn python3-gevent apache2-utils curl
# needs: gunicorn ab curl python3:gevent

setup() {
    cat >app.py <<'EOF'
def app(e, s):
    n = int(e.get('CONTENT_LENGTH') or 0)
    b = e['wsgi.input'].read(n)
    s('200 OK', [('Content-Type','text/plain')])
    return [b'x'*100000, str(len(b)).encode()]
EOF
}

server() {
    exec /usr/bin/python3 /usr/bin/gunicorn -k gevent -w 2 -b $A:$P --log-level error app:app
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
