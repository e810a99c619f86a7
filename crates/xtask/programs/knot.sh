# Knot DNS: a secondary that gets its zone over TCP, and kdig.
# packages: knot knot-dnsutils
# needs: knotd kdig

setup() {
    mkdir one two
    { printf '$ORIGIN x.
$TTL 60
@ SOA ns.x. a.x. 1 60 60 60 60
@ NS ns.x.
ns A 192.0.2.1
'; for i in $(seq 1 20000); do echo "h$i A 10.0.$((i/250)).$((i%250))"; done; } > one/x.zone
    cat >one.conf <<EOF
server:
  rundir: $D/one
  listen: $A@$P2
  tcp-reuseport: on
  tcp-workers: 2
database:
  storage: $D/one
acl:
  - id: all
    address: 0.0.0.0/0
    action: transfer
zone:
  - domain: x
    storage: $D/one
    file: x.zone
    acl: all
EOF
    cat >two.conf <<EOF
server:
  rundir: $D/two
  listen: $A@$P
database:
  storage: $D/two
remote:
  - id: one
    address: $A@$P2
acl:
  - id: all
    address: 0.0.0.0/0
    action: transfer
zone:
  - domain: x
    storage: $D/two
    master: one
    acl: all
EOF
}

server2() {
    exec knotd -c $D/one.conf
}

server() {
    exec knotd -c $D/two.conf
}

client() {
    for i in 1 2 3 4 5 6 7 8 9 10; do [ "$(kdig +tcp +short @$A -p $P h17.x)" ] && break; sleep 1; done
    for port in $P $P2; do
        kdig +tcp +short @$A -p $port h17.x
        kdig +tcp +noall +answer @$A -p $port x axfr | grep -c '\bA\b'
        kdig +tcp +keepopen +short @$A -p $port h1.x h2.x h3.x h4.x h5.x
    done
}
