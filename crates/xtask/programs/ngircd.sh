# ngIRCd: two clients in a channel.
# packages: ngircd
# needs: ngircd

setup() {
    cat >n.conf <<EOF
[Global]
Name = irc.x.y
Info = x
Listen = $A
Ports = $P
[Options]
Ident = no
DNS = no
PAM = no
[Limits]
MaxConnectionsIP = 0
EOF
}

server() {
    exec ngircd -n -f n.conf
}

client() {
    python3 - <<'EOF'
import socket,os
def c(n):
  s=socket.create_connection((os.environ['A'],int(os.environ['P'])));f=s.makefile('rb'); s.sendall(f'NICK {n}\r\nUSER {n} 0 * :{n}\r\n'.encode())
  while b' 376 ' not in (l:=f.readline()) and b' 422 ' not in l: assert l
  s.sendall(b'JOIN #a\r\n')
  while b' 366 ' not in f.readline(): pass
  return s,f
a=c('a');b=c('b')
a[0].sendall(b''.join(b'PRIVMSG #a :%d\r\n'%i for i in range(20)))
n=0
while n<20:
  l=b[1].readline(); assert l
  n+=b'PRIVMSG' in l
print(n)
EOF
}
