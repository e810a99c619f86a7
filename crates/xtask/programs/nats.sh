# NATS (Go), and a client in Python.
# packages: nats-server
# needs: nats-server
# stays: Go asks the kernel without the C library

server() {
    exec nats-server -a $A -p $P
}

client() {
    python3 - <<'EOF'
import socket,os
def client():
  s=socket.create_connection((os.environ['A'],int(os.environ['P'])));f=s.makefile('rb')
  assert f.readline().startswith(b'INFO'); s.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n'); assert f.readline()==b'PONG\r\n'
  return s,f
a,fa=client(); b,fb=client()
b.sendall(b'SUB x 1\r\nPING\r\n'); assert fb.readline()==b'PONG\r\n'
total=0
for k in range(20):
  a.sendall(b''.join(b'PUB x %d\r\n%s\r\n'%(n,b'y'*n) for n in range(100)))
  for n in range(100):
    words=fb.readline().split()
    while words==[b'PING']: b.sendall(b'PONG\r\n'); words=fb.readline().split()
    assert words==[b'MSG',b'x',b'1',b'%d'%n],words
    total+=len(fb.read(n+2))
print(total)
EOF
}
