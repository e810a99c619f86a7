# Squid: a proxy, and CONNECT.
# packages: squid curl
# needs: squid curl

setup() {
    cat >s.conf <<EOF
http_port $A:$P
http_access allow all
pid_filename $D/run/pid
cache_log $D/run/cache.log
access_log none
cache_effective_user proxy
shutdown_lifetime 1 seconds
EOF
    mkdir www
    seq 1 100000 > www/a.txt
    mkdir run
    chown proxy run
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec squid -N -f $D/s.conf
}

client() {
    for i in 1 2 3; do curl -s -x http://$A:$P http://$A:$P2/a.txt | sha256sum; done
    curl -s -p -x http://$A:$P http://$A:$P2/a.txt -o /dev/null -w '%{http_code}
'
}
