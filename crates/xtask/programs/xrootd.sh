# XRootD: a file of 20 MB there and back.
# packages: xrootd-server xrootd-client
# needs: xrootd xrdcp xrdfs

setup() {
    mkdir data adm
    cat >x.cf <<EOF
all.export /data
oss.localroot $D
all.adminpath $D/adm
all.pidpath $D/adm
xrd.port $P
xrd.network nodnr
EOF
    chown -R xrootd .
}

server() {
    exec xrootd -R xrootd -c $D/x.cf -l $D/adm/log
}

client() {
    head -c 20000000 /dev/urandom > a
    for i in 1 2; do
        xrdcp -s -f a root://$A:$P//data/b$i
        xrdcp -s -f root://$A:$P//data/b$i c$i
        cmp a c$i && echo same
    done
    xrdfs $A:$P ls /data
}
