# BIND: queries over TCP, and a transfer of a zone.
# packages: bind9 bind9-dnsutils
# needs: named dig

setup() {
    cat >n.conf <<EOF
options { directory "$D/run"; listen-on port $P { $A; }; listen-on-v6 { none; }; pid-file none; recursion no; dnssec-validation no; allow-transfer { any; }; session-keyfile none; };
controls { };
zone "x" { type master; file "$D/x.zone"; };
EOF
    { printf '$TTL 60
@ SOA ns.x. a.x. 1 60 60 60 60
@ NS ns.x.
ns A 192.0.2.1
'; for i in $(seq 1 3000); do echo "h$i A 10.0.$((i/250)).$((i%250))"; done; } > x.zone
    mkdir run
    chown bind run
}

server() {
    exec named -f -c n.conf -u bind
}

client() {
    dig +tcp +short @$A -p $P h17.x
    dig +tcp +noall +answer @$A -p $P x axfr | wc -l
    dig +short @$A -p $P h18.x
    for i in 1 2 3 4 5; do dig +tcp +keepopen +short @$A -p $P h1.x h2.x h3.x; done
}
