# memcached with four threads: pipelines.
# packages: memcached
# needs: memcached

server() {
    exec memcached -u nobody -l $A -p $P -t 4
}

client() {
    python3 - <<'EOF'
import socket,os
for c in range(20):
 s=socket.create_connection((os.environ['A'],int(os.environ['P'])));f=s.makefile('rb')
 for i in range(200): s.sendall(b'set k%d 0 0 %d\r\n'%(i,i*100)+b'x'*(i*100)+b'\r\n'); assert f.readline()==b'STORED\r\n'
 s.sendall(b''.join(b'get k%d\r\n'%i for i in range(200)))
 for i in range(200):
  assert f.readline().startswith(b'VALUE'); assert len(f.read(i*100+2))==i*100+2; assert f.readline()==b'END\r\n'
print('ok')
EOF
}
