# beanstalkd: 2,000 jobs.
# packages: beanstalkd
# needs: beanstalkd

server() {
    exec beanstalkd -l $A -p $P
}

client() {
    python3 - <<'EOF'
import socket,os
s=socket.create_connection((os.environ['A'],int(os.environ['P'])));f=s.makefile('rb')
for i in range(2000):
  s.sendall(b'put 0 0 60 5\r\nabcde\r\n'); assert f.readline().startswith(b'INSERTED')
for i in range(2000):
  s.sendall(b'reserve\r\n'); l=f.readline().split(); assert l[0]==b'RESERVED'; f.readline(); s.sendall(b'delete '+l[1]+b'\r\n'); f.readline()
print('ok')
EOF
}
