# etcd (Go), and etcdctl.
# packages: etcd-server etcd-client
# needs: etcd etcdctl
# stays: Go asks the kernel without the C library

server() {
    exec etcd --data-dir $D/e --listen-client-urls http://$A:$P --advertise-client-urls http://$A:$P --listen-peer-urls http://$A:$P2 --initial-advertise-peer-urls http://$A:$P2 --initial-cluster default=http://$A:$P2 --log-level error
}

client() {
    export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://$A:$P
    for i in $(seq 1 20); do etcdctl put k$i "$(seq 1 $((i * 1000)))"; done | sort | uniq -c
    etcdctl get --prefix k | sha256sum
    etcdctl watch w >got & sleep 1
    for i in 1 2 3; do etcdctl put w $i; done
    sleep 1
    kill $!
    cat got
}
