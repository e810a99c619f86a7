# Redis Cluster of three nodes, and redis-cli.
# packages: redis-server redis-tools
# needs: redis-server redis-cli

node() {
    mkdir -p n$1
    exec redis-server --port $1 --cluster-port $(($1 - 10000)) --bind $A --save '' --dir $D/n$1 --cluster-enabled yes --protected-mode no
}

server3() {
    node $P3
}

server2() {
    node $P2
}

server() {
    node $P
}

client() {
    C="redis-cli -h $A -p $P"
    redis-cli --cluster create $A:$P $A:$P2 $A:$P3 --cluster-yes | grep -c 'All 16384 slots covered'
    # Each of them finds that out for itself.
    for port in $P $P2 $P3; do
        for i in $(seq 1 100); do [ "$(redis-cli -h $A -p $port cluster info | grep -c state:ok)" = 1 ] && break; sleep 0.1; done
    done
    sleep 2
    for i in $(seq 1 300); do echo "set k$i $i"; done | $C -c | grep -c OK
    for i in $(seq 1 300); do echo "get k$i"; done | $C -c | grep -E '^[0-9]+$' | sort -n | sha256sum
    S=$(redis-cli -h $A -p $P2 cluster myid | cut -c 1-40)
    F=$($C cluster myid | cut -c 1-40)
    redis-cli --cluster reshard $A:$P --cluster-from $F --cluster-to $S --cluster-slots 100 --cluster-yes >/dev/null && echo moved
    sleep 2
    for i in $(seq 1 300); do echo "get k$i"; done | $C -c | grep -E '^[0-9]+$' | sort -n | sha256sum
}
