# Uvicorn with an application, and a client of websockets
# packages: python3-uvicorn python3-websockets apache2-utils curl
# needs: ab curl python3:uvicorn python3:websockets

setup() {
    cat >app.py <<'EOF'
async def app(scope, receive, send):
    if scope['type'] == 'websocket':
        await receive()
        await send({'type': 'websocket.accept'})
        while (event := await receive())['type'] == 'websocket.receive':
            await send({'type': 'websocket.send', 'bytes': event['bytes'][::-1]})
    elif scope['type'] == 'http':
        body = b''
        while True:
            event = await receive()
            body += event.get('body', b'')
            if not event.get('more_body'):
                break
        await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'100000')]})
        await send({'type': 'http.response.body', 'body': (b'%d ' % len(body)).ljust(100000, b'x')})
EOF
    cat >c.py <<'EOF'
import asyncio, os, websockets
async def main():
    async with websockets.connect('ws://%s:%s/' % (os.environ['A'], os.environ['P']), max_size=None) as ws:
        for n in range(500):
            data = os.urandom(n * 100)
            await ws.send(data)
            assert await ws.recv() == data[::-1]
    print('ok')
asyncio.run(main())
EOF
}

server() {
    exec /usr/bin/python3 -m uvicorn --host $A --port $P --log-level error app:app
}

client() {
    /usr/bin/python3 c.py
    seq 1 50000 > b
    for i in 1 2 3; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
