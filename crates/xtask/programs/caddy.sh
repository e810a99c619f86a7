# Caddy (Go) in front of Gunicorn, and ab.
# packages: caddy gunicorn apache2-utils curl
# needs: caddy gunicorn ab curl
# stays: Go asks the kernel without the C library

setup() {
    cat >Caddyfile <<EOF
{
    admin off
    auto_https off
}
http://$A:$P {
    handle /app* {
        reverse_proxy $A:$P2
    }
    handle {
        root * $D/www
        file_server
    }
}
EOF
    cat >app.py <<'EOF'
def app(e, s):
    n = int(e.get('CONTENT_LENGTH') or 0)
    b = e['wsgi.input'].read(n)
    s('200 OK', [('Content-Type','text/plain')])
    return [b'x'*100000, str(len(b)).encode()]
EOF
    mkdir www
    seq 1 300000 > www/a.txt
}

server2() {
    exec /usr/bin/python3 /usr/bin/gunicorn -k gthread --threads 4 -b $A:$P2 --log-level error app:app
}

server() {
    exec caddy run --config $D/Caddyfile
}

client() {
    curl -s http://$A:$P/a.txt | sha256sum
    seq 1 50000 > b
    for i in 1 2 3; do curl -s --data-binary @b http://$A:$P/app | sha256sum; done
    for path in a.txt app; do ab -q -n 500 -c 10 -k http://$A:$P/$path | grep -E 'Complete|Failed|Non-2xx'; done
}
