# dnsmasq: queries over TCP, for each of which it forks.
# packages: dnsmasq-base bind9-dnsutils
# needs: dnsmasq dig

setup() {
    for i in $(seq 1 1000); do echo "10.0.$((i/250)).$((i%250)) h$i.x"; done > hosts
}

server() {
    exec dnsmasq -k --no-resolv --no-hosts --addn-hosts=$D/hosts --listen-address=$A --bind-interfaces --port=$P --user=root --pid-file= --conf-file=/dev/null
}

client() {
    for i in $(seq 1 100); do echo h$i.x; done > names
    for i in $(seq 1 30); do dig +tcp +short @$A -p $P h$i.x; done
    dig +tcp +keepopen +short @$A -p $P -f names | sha256sum
}
