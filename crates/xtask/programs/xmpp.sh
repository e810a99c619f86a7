# Prosody: two clients of XMPP, who send each other 200 messages.
# packages: prosody python3-slixmpp
# needs: prosody python3:slixmpp
# as: prosody

setup() {
    cat >p.lua <<EOF
daemonize = false
run_as_root = false
data_path = "$D/data"
pidfile = "$D/pid"
log = { error = "$D/log" }
modules_enabled = { "roster", "saslauth", "disco", "ping", "posix" }
modules_disabled = { "s2s", "tls" }
authentication = "internal_plain"
allow_unencrypted_plain_auth = true
c2s_require_encryption = false
c2s_ports = { $P }
c2s_interfaces = { "$A" }
s2s_ports = { }
http_ports = { }
https_ports = { }
network_backend = "epoll"
VirtualHost "x"
EOF
    mkdir -p data/x/accounts
    for name in ann bob; do echo 'return { ["password"] = "secret" };' > data/x/accounts/$name.dat; done
    cat >c.py <<'EOF'
import asyncio, logging, os, slixmpp
class One(slixmpp.ClientXMPP):
    def __init__(self, name, other):
        super().__init__(name + '@x/y', 'secret')
        self['feature_mechanisms'].unencrypted_plain = True
        self['feature_mechanisms'].unencrypted_scram = True
        self.got, self.other = [], other
        self.started, self.all = asyncio.Event(), asyncio.Event()
        self.add_event_handler('session_start', self.start)
        self.add_event_handler('message', self.message)
    async def start(self, _):
        self.send_presence()
        self.started.set()
    def message(self, m):
        self.got.append(len(m['body']))
        if len(self.got) == 200: self.all.set()
async def main():
    both = [One('ann', 'bob'), One('bob', 'ann')]
    for one in both:
        one.connect((os.environ['A'], int(os.environ['P'])), disable_starttls=True, force_starttls=False)
    await asyncio.wait_for(asyncio.gather(*(one.started.wait() for one in both)), 60)
    for n in range(200):
        for one in both:
            one.send_message(mto=one.other + '@x/y', mbody='x' * (n + 1) * 10)
    await asyncio.wait_for(asyncio.gather(*(one.all.wait() for one in both)), 60)
    print([sum(one.got) for one in both], all(one.got == sorted(one.got) for one in both))
asyncio.get_event_loop().run_until_complete(main())
EOF
}

server() {
    exec prosody --config $D/p.lua
}

client() {
    /usr/bin/python3 c.py 2>/dev/null
}
