# rsync's daemon: a tree there and back.
# packages: rsync
# needs: rsync

setup() {
    cat >r.conf <<EOF
port = $P
address = $A
use chroot = no
[m]
path = $D/src
read only = no
uid = root
EOF
    mkdir src
    cp -rL /usr/share/perl/5.36* src/ 2>/dev/null || true
    seq 1 500000 > src/a.txt
}

server() {
    exec rsync --daemon --no-detach --config=$D/r.conf
}

client() {
    rsync -a rsync://$A:$P/m/ dst/ && diff -r src dst && echo same
    echo new > dst/a.txt
    rsync -a dst/ rsync://$A:$P/m/ && diff -r src dst && echo same
}
