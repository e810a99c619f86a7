# Varnish in front of Python's http.server, and ab.
# packages: varnish gcc libc6-dev apache2-utils curl
# needs: varnishd ab curl
# pause: 2

setup() {
    cat >v.vcl <<EOF
vcl 4.1;
backend default { .host = "$A"; .port = "$P2"; }
EOF
    mkdir www v
    seq 1 100000 > www/a.txt
    chmod a+rx .
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec varnishd -F -a $A:$P -f $D/v.vcl -n $D/v -j none
}

client() {
    curl -s http://$A:$P/a.txt | sha256sum
    ab -q -n 2000 -c 20 -k http://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
