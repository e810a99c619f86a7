# nbdkit, qemu-img and nbdcopy: 50 MB there and back.
# packages: nbdkit qemu-utils libnbd-bin
# needs: nbdkit qemu-img nbdcopy

setup() {
    head -c 50000000 /dev/urandom > d.img
}

server() {
    exec nbdkit -f -p $P -i $A file d.img
}

client() {
    qemu-img convert -f raw -O raw nbd://$A:$P o.img && cmp -n 50000000 d.img o.img && echo same
    nbdcopy nbd://$A:$P p.img && cmp d.img p.img && echo same
    nbdcopy d.img nbd://$A:$P
    echo $?
}
