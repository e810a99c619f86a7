# ClamAV's clamd: streams, and many of them at once.
# packages: clamav-daemon clamdscan
# needs: clamd clamdscan

setup() {
    mkdir db
    head -c 1000000 /dev/zero > bad
    echo "$(md5sum < bad | cut -c 1-32):1000000:Bad" > db/x.hdb
    cat >c.conf <<EOF
Foreground yes
DatabaseDirectory $D/db
TCPSocket $P
TCPAddr $A
User root
PidFile $D/pid
LogFile $D/log
SelfCheck 0
EOF
}

server() {
    exec clamd -c $D/c.conf
}

client() {
    seq 1 500000 > good
    for i in 1 2 3 4 5; do
        clamdscan -c $D/c.conf --stream --no-summary bad good | sed "s,$D,,"
    done
    mkdir many
    for i in $(seq 1 50); do head -c $((i * 20000)) /dev/zero > many/$i; done
    clamdscan -c $D/c.conf --stream -m --no-summary many | sort | sed "s,$D,,"
    clamdscan -c $D/c.conf --ping 1
}
