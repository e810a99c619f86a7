# Privoxy: a proxy that filters, and CONNECT.
# packages: privoxy curl
# needs: privoxy curl

setup() {
    cat >p.conf <<EOF
confdir /etc/privoxy
logdir $D
filterfile default.filter
actionsfile a.action
listen-address $A:$P
keep-alive-timeout 5
EOF
    cat >a.action <<EOF
{ +filter{webbugs} +filter{html-annoyances} +limit-connect{1-} }
/
EOF
    mkdir www
    seq 1 100000 > www/a.txt
    { echo '<html><body>'; seq 1 20000; echo '</body></html>'; } > www/a.html
    sed -i "s,^confdir.*,confdir $D," p.conf
    cp /etc/privoxy/default.filter .
    cp -r /etc/privoxy/templates .
}

server2() {
    exec python3 -m http.server --bind $A -d www $P2
}

server() {
    exec privoxy --no-daemon $D/p.conf
}

client() {
    for i in 1 2 3; do curl -s -x http://$A:$P http://$A:$P2/a.html | sha256sum; curl -s -p -x http://$A:$P http://$A:$P2/a.txt | sha256sum; done
}
