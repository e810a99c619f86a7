# uWSGI.
# packages: uwsgi uwsgi-plugin-python3 apache2-utils curl
# needs: uwsgi ab curl

setup() {
    cat >app.py <<'EOF'
def application(e, s):
    n = int(e.get('CONTENT_LENGTH') or 0)
    b = e['wsgi.input'].read(n)
    s('200 OK', [('Content-Type','text/plain')])
    return [b'x'*100000, str(len(b)).encode()]
EOF
}

server() {
    exec uwsgi --plugin python3 --http-socket $A:$P --wsgi-file app.py --processes 2 --disable-logging --die-on-term
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
