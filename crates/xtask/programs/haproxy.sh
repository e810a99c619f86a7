# HAProxy between ab and Apache httpd, by HTTP and by TCP
# packages: haproxy apache2-bin apache2-utils curl
# needs: haproxy apache2 ab curl

setup() {
    cat >h.cfg <<EOF
global
    nbthread 2
defaults
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend by_http
    mode http
    bind $A:$P
    default_backend http
backend http
    mode http
    server one $A:$P3
listen by_tcp
    mode tcp
    bind $A:$P2
    server one $A:$P3
EOF
    cat >httpd.conf <<EOF
ServerRoot $D
ServerName localhost
Listen $A:$P3
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
PidFile $D/pid
ErrorLog $D/err
User www-data
Group www-data
DocumentRoot $D/www
<Directory $D/www>
Require all granted
</Directory>
EOF
    mkdir www
    seq 1 100000 > www/a.txt
    chmod -R a+rX .
}

server3() {
    exec apache2 -DFOREGROUND -f $D/httpd.conf
}

server() {
    exec haproxy -f h.cfg
}

client() {
    for port in $P $P2; do
        curl -s http://$A:$port/a.txt | sha256sum
        ab -q -n 1000 -c 20 -k http://$A:$port/a.txt | grep -E 'Complete|Failed|Non-2xx'
    done
}
