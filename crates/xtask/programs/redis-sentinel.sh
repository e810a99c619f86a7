# Redis with a replica, and Sentinel, which makes it the master.
# packages: redis-server redis-sentinel redis-tools
# needs: redis-server redis-sentinel redis-cli

setup() {
    mkdir one two
    cat >s.conf <<EOF
port $P3
bind $A
dir $D
protected-mode no
sentinel monitor m $A $P 1
sentinel down-after-milliseconds m 10000
sentinel failover-timeout m 30000
EOF
}

server() {
    exec redis-server --port $P --bind $A --save '' --dir $D/one --protected-mode no
}

server2() {
    exec redis-server --port $P2 --bind $A --save '' --dir $D/two --protected-mode no --replicaof $A $P
}

server3() {
    exec redis-sentinel $D/s.conf
}

client() {
    until_says() { for i in $(seq 1 300); do [ "$(redis-cli -h $A -p $1 $2 | grep -c $3)" = 1 ] && break; sleep 0.1; done; echo $3; }
    until_says $P2 'info replication' master_link_status:up
    for i in $(seq 1 1000); do echo "set k$i $(head -c 1000 /dev/zero | tr '\0' x)$i"; done | redis-cli -h $A -p $P | sort | uniq -c
    redis-cli -h $A -p $P wait 1 5000
    redis-cli -h $A -p $P2 get k700 | wc -c
    until_says $P3 'sentinel master m' '^num-slaves$'
    for i in $(seq 1 300); do redis-cli -h $A -p $P3 sentinel replicas m | grep -q $P2 && break; sleep 0.1; done
    redis-cli -h $A -p $P3 sentinel failover m
    until_says $P2 'info replication' role:master
    until_says $P 'info replication' role:slave
    until_says $P 'info replication' master_link_status:up
    redis-cli -h $A -p $P2 set k700 new
    redis-cli -h $A -p $P2 wait 1 5000
    redis-cli -h $A -p $P get k700
}
