# Apache httpd with threads, and ab.
# packages: apache2-bin apache2-utils curl
# needs: apache2 ab curl

setup() {
    cat >httpd.conf <<EOF
ServerRoot $D
ServerName localhost
Listen $A:$P
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
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

server() {
    exec apache2 -DFOREGROUND -f $D/httpd.conf
}

client() {
    curl -s http://$A:$P/a.txt | sha256sum
    for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{http_code} %{size_download}
' http://$A:$P/a.txt http://$A:$P/none; done
    ab -q -n 2000 -c 20 -k http://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
