# Python: XML-RPC with threads, managers of multiprocessing, and asyncio with TLS.
# packages: python3 openssl
# needs: python3 openssl

setup() {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 3 -subj /CN=localhost 2>/dev/null
    cat >s1.py <<'EOF'
import os, socketserver, xmlrpc.server
class Server(socketserver.ThreadingMixIn, xmlrpc.server.SimpleXMLRPCServer): pass
s = Server((os.environ['A'], int(os.environ['P'])), logRequests=False)
s.register_function(lambda text: text[::-1], 'turned')
s.register_multicall_functions()
s.serve_forever()
EOF
    cat >s2.py <<'EOF'
import os, queue
from multiprocessing.managers import BaseManager
q = queue.Queue()
class M(BaseManager): pass
M.register('q', callable=lambda: q)
M((os.environ['A'], int(os.environ['P2'])), authkey=b'k').get_server().serve_forever()
EOF
    cat >s3.py <<'EOF'
import asyncio, os, ssl
async def serve(r, w):
    while data := await r.read(70000):
        w.write(data)
        await w.drain()
    w.close()
async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain('c.pem', 'k.pem')
    await (await asyncio.start_server(serve, os.environ['A'], int(os.environ['P3']), ssl=context)).serve_forever()
asyncio.run(main())
EOF
    cat >c.py <<'EOF'
import asyncio, os, ssl, xmlrpc.client
from multiprocessing.managers import BaseManager
proxy = xmlrpc.client.ServerProxy('http://%s:%s' % (os.environ['A'], os.environ['P']))
for n in range(200):
    assert proxy.turned('in' * n * 20) == 'ni' * n * 20
many = xmlrpc.client.MultiCall(proxy)
for n in range(200):
    many.turned(str(n))
print(list(many()) == [str(n)[::-1] for n in range(200)])
class M(BaseManager): pass
M.register('q')
m = M((os.environ['A'], int(os.environ['P2'])), authkey=b'k')
m.connect()
q = m.q()
for n in range(300):
    q.put(b'x' * n * 100)
print(sum(len(q.get()) for n in range(300)), q.empty())
async def one(k):
    context = ssl.create_default_context(cafile='c.pem')
    context.check_hostname = False
    r, w = await asyncio.open_connection(os.environ['A'], int(os.environ['P3']), ssl=context)
    for n in range(100):
        w.write(bytes([k]) * (n * 300))
        assert await r.readexactly(n * 300) == bytes([k]) * (n * 300)
    w.close()
async def main():
    await asyncio.gather(*(one(k) for k in range(10)))
    print('ok')
asyncio.run(main())
EOF
}

server() {
    exec python3 s1.py
}

server2() {
    exec python3 s2.py
}

server3() {
    exec python3 s3.py
}

client() {
    python3 c.py
}
