# Unbound in front of NSD: queries over TCP, and many in one connection.
# packages: unbound nsd bind9-dnsutils
# needs: unbound nsd dig

setup() {
    { printf '$ORIGIN x.
$TTL 60
@ SOA ns.x. a.x. 1 60 60 60 60
@ NS ns.x.
ns A 192.0.2.1
'; for i in $(seq 1 2000); do echo "h$i A 10.0.$((i/250)).$((i%250))"; done; for i in $(seq 1 200); do echo "big TXT \"$i $(head -c 100 /dev/zero | tr '\0' x)\""; done; } > x.zone
    cat >n.conf <<EOF
server:
  ip-address: $A@$P2
  username: ""
  zonesdir: "$D"
  zonelistfile: "$D/zones"
  database: ""
  xfrdfile: "$D/xfrd"
  xfrdir: "$D"
  pidfile: ""
  server-count: 2
  rrl-ratelimit: 0
remote-control:
  control-enable: no
zone:
  name: x
  zonefile: x.zone
  provide-xfr: 0.0.0.0/0 NOKEY
EOF
    cat >u.conf <<EOF
server:
  interface: $A@$P
  username: ""
  chroot: ""
  pidfile: ""
  directory: "$D"
  use-syslog: no
  do-daemonize: no
  do-not-query-localhost: no
  access-control: 0.0.0.0/0 allow
  tcp-upstream: yes
  num-threads: 2
  module-config: "iterator"
  domain-insecure: x
  local-zone: x nodefault
stub-zone:
  name: x
  stub-addr: $A@$P2
remote-control:
  control-enable: no
EOF
}

server2() {
    exec nsd -d -c $D/n.conf
}

server() {
    exec unbound -d -c $D/u.conf
}

client() {
    for i in $(seq 1 300); do echo h$i.x; done > names
    dig +tcp +keepopen +short @$A -p $P -f names | sha256sum
    dig +tcp +short @$A -p $P big.x txt | sort -V | sha256sum
    dig +tcp +noall +answer @$A -p $P2 x axfr | wc -l
    for i in 1 2 3 4 5; do dig +tcp +short @$A -p $P h$((i * 7)).x; done
}
