# H2O, and ab.
# packages: h2o apache2-utils curl
# needs: h2o ab curl

setup() {
    cat >h.yaml <<EOF
listen: {host: $A, port: $P}
user: root
hosts: {"*": {paths: {"/": {file.dir: $D/www}}}}
EOF
    mkdir www
    seq 1 300000 > www/a.txt
}

server() {
    exec h2o -m worker -c h.yaml
}

client() {
    curl -s http://$A:$P/a.txt | sha256sum
    ab -q -n 1000 -c 10 -k http://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
