# Puma (Ruby), and curl.
# packages: puma curl
# needs: puma curl
# pause: 2

setup() {
    cat >c.ru <<'EOF'
run lambda { |e| [200, {'content-type'=>'text/plain'}, ['x'*100000, e['rack.input'].read.length.to_s]] }
EOF
}

server() {
    exec puma -q -t 1:4 -w 2 -b tcp://$A:$P c.ru
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
}
