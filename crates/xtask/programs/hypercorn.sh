# Hypercorn: HTTP/2 and h2load.
# packages: python3-hypercorn nghttp2-client curl
# needs: h2load curl python3:hypercorn

setup() {
    cat >app.py <<'EOF'
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    body = b''
    while True:
        event = await receive()
        body += event.get('body', b'')
        if not event.get('more_body'):
            break
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'100000')]})
    await send({'type': 'http.response.body', 'body': (b'%d ' % len(body)).ljust(100000, b'x')})
EOF
}

server() {
    exec /usr/bin/python3 -m hypercorn -b $A:$P -w 2 --log-level error app:app
}

client() {
    # Less than curl 7.88 writes at once: over HTTP/2 it repeats itself after a send that took a part, by TCP as well.
    seq 1 10000 > b
    for i in 1 2 3; do curl -s --http2-prior-knowledge --data-binary @b http://$A:$P/ | sha256sum; done
    h2load -n 300 -c 5 -m 5 http://$A:$P/ | grep -E '^requests|^status'
}
