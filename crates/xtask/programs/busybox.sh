# BusyBox: httpd, wget and nc.
# packages: busybox-static
# needs: busybox
# stays: it is static, without the C library

setup() {
    mkdir -p www/cgi-bin
    seq 1 300000 > www/a.txt
    printf '#!/bin/sh\necho Content-Type: text/plain\necho\nwc -c\n' > www/cgi-bin/count
    chmod -R a+rx .
}

server() {
    exec busybox httpd -f -p $A:$P -h www
}

server2() {
    while true; do busybox nc -l -p $P2 -e cat; done
}

client() {
    for i in 1 2 3; do busybox wget -q -O - http://$A:$P/a.txt | sha256sum; done
    for i in 1 2 3; do busybox wget -q -O - --post-data "$(seq 1 $((i * 1000)))" http://$A:$P/cgi-bin/count; done
    for i in 1 2 3; do { seq 1 100000; sleep 0.5; } | busybox nc -w 1 $A $P2 | sha256sum; sleep 0.3; done
}
