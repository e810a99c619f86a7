# websockify between a client of websockets and an echo of socat.
# packages: websockify python3-websockets socat
# needs: websockify socat python3:websockets

setup() {
    cat >c.py <<'EOF'
import asyncio, os, websockets
async def one(k):
    async with websockets.connect('ws://%s:%s/' % (os.environ['A'], os.environ['P']), subprotocols=['binary'], max_size=None) as ws:
        for n in range(1, 200):
            data = bytes([k]) * (n * 100)
            await ws.send(data)
            got = b''
            while len(got) < len(data):
                got += await ws.recv()
            assert got == data
async def main():
    await asyncio.gather(*(one(k) for k in range(5)))
    print('ok')
asyncio.run(main())
EOF
}

server2() {
    exec socat TCP-LISTEN:$P2,bind=$A,fork,reuseaddr PIPE
}

server() {
    exec /usr/bin/python3 /usr/bin/websockify $A:$P $A:$P2
}

client() {
    /usr/bin/python3 c.py
}
