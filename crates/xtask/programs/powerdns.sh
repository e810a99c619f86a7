# PowerDNS with its webserver: queries and a transfer over TCP.
# packages: pdns-server pdns-backend-bind bind9-dnsutils curl
# needs: pdns_server dig curl

setup() {
    { printf '$ORIGIN x.
$TTL 60
@ SOA ns.x. a.x. 1 60 60 60 60
@ NS ns.x.
ns A 192.0.2.1
'; for i in $(seq 1 3000); do echo "h$i A 10.0.$((i/250)).$((i%250))"; done; } > x.zone
    echo "zone \"x\" { type master; file \"$D/x.zone\"; };" > named.conf
    cat >pdns.conf <<EOF
launch=bind
bind-config=$D/named.conf
local-address=$A
local-port=$P
socket-dir=$D
allow-axfr-ips=0.0.0.0/0
receiver-threads=2
webserver=yes
webserver-address=$A
webserver-port=$P2
webserver-allow-from=0.0.0.0/0
api=yes
api-key=k
loglevel=3
EOF
}

server() {
    exec pdns_server --config-dir=$D --guardian=no --daemon=no
}

client() {
    dig +tcp +short @$A -p $P h17.x
    dig +tcp +noall +answer @$A -p $P x axfr | wc -l
    for i in 1 2 3 4 5; do dig +tcp +keepopen +short @$A -p $P h1.x h2.x h3.x; done
    curl -s -H 'X-API-Key: k' http://$A:$P2/api/v1/servers/localhost/zones | tr ',' '\n' | grep '"name"'
}
