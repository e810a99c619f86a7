# mini_httpd, webfs and Weborf, and ab.
# packages: mini-httpd webfs weborf apache2-utils curl
# needs: mini_httpd webfsd weborf ab curl

setup() {
    mkdir www
    seq 1 100000 > www/a.txt
    chmod -R a+rX .
}

server() {
    exec mini_httpd -D -h $A -p $P -d www -u nobody -i $D/pid
}

server2() {
    exec webfsd -F -i $A -p $P2 -r $D/www -u nobody -g nogroup
}

server3() {
    exec weborf -I $A -p $P3 -b $D/www
}

client() {
    for port in $P $P2 $P3; do
        curl -s http://$A:$port/a.txt | sha256sum
        curl -s -r 1000-1999 http://$A:$port/a.txt | sha256sum
        ab -q -n 300 -c 5 http://$A:$port/a.txt | grep -E 'Complete|Failed|Non-2xx'
    done
}
