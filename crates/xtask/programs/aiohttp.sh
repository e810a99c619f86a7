# aiohttp on uvloop, server and client.
# packages: python3-aiohttp python3-uvloop apache2-utils
# needs: ab python3:uvloop

setup() {
    cat >app.py <<EOF
import uvloop, asyncio, os
from aiohttp import web
uvloop.install()
async def h(r):
    b = await r.read()
    return web.Response(text='x'*100000+str(len(b)))
a = web.Application(client_max_size=10**9); a.router.add_route('*','/',h)
web.run_app(a, host='$A', port=int(os.environ['P']), print=None, access_log=None)
EOF
    cat >c.py <<EOF
import uvloop, asyncio, os, aiohttp
uvloop.install()
async def main():
    u='http://$A:'+os.environ['P']
    async with aiohttp.ClientSession() as s:
        async def one(n):
            async with s.post(u, data=b'z'*n) as r: t=await r.text(); assert t=='x'*100000+str(n), len(t)
        for k in range(20): await asyncio.gather(*(one(n*1000) for n in range(20)))
    print('ok')
asyncio.run(main())
EOF
}

server() {
    exec /usr/bin/python3 app.py
}

client() {
    /usr/bin/python3 c.py
    ab -q -n 500 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
