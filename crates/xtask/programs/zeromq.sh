# ZeroMQ: request and reply, push and pull.
# packages: python3-zmq
# needs: python3:zmq

setup() {
    cat >s.py <<EOF
import zmq, os
c=zmq.Context(); s=c.socket(zmq.REP); s.bind('tcp://$A:'+os.environ['P'])
p=c.socket(zmq.PULL); p.bind('tcp://$A:'+os.environ['P2'])
q=zmq.Poller(); q.register(s,1); q.register(p,1); n=0
while True:
    for k,_ in q.poll():
        m=k.recv()
        if k is p: n+=len(m)
        else: s.send(str(n).encode() if m==b'?' else m)
EOF
    cat >c.py <<EOF
import zmq, os, time
c=zmq.Context(); s=c.socket(zmq.REQ); s.connect('tcp://$A:'+os.environ['P'])
for i in range(2000): s.send(b'x'*i); assert s.recv()==b'x'*i
p=c.socket(zmq.PUSH); p.connect('tcp://$A:'+os.environ['P2'])
for i in range(20000): p.send(b'y'*100)
while True:
    s.send(b'?'); n=int(s.recv())
    if n==2000000: break
    time.sleep(.01)
print(n)
EOF
}

server() {
    exec /usr/bin/python3 s.py
}

client() {
    /usr/bin/python3 c.py
}
