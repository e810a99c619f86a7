# Twisted's web server, and ab.
# packages: python3-twisted apache2-utils curl
# needs: ab curl python3:twisted

server() {
    exec /usr/bin/python3 -m twisted --log-file=/dev/null web --listen tcp:$P:interface=$A --path /usr/share/common-licenses
}

client() {
    curl -s http://$A:$P/GPL-3 | sha256sum
    ab -q -n 500 -c 5 -k http://$A:$P/GPL-3 | grep -E 'Complete|Failed|Non-2xx'
}
