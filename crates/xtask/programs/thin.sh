# Thin (EventMachine), and ab.
# packages: thin apache2-utils curl
# needs: thin ab curl

setup() {
    cat >config.ru <<'EOF'
run ->(e) { [200, {'Content-Type' => 'text/plain'}, ['x' * 100000, e['rack.input'].read.size.to_s]] }
EOF
}

server() {
    exec thin -a $A -p $P -R config.ru -q start
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
