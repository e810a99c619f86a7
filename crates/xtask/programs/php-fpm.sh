# nginx in front of PHP's FPM.
# packages: nginx-light php-fpm apache2-utils curl
# needs: nginx php-fpm8.2 ab curl

setup() {
    cat >fpm.conf <<EOF
[global]
error_log = /dev/stderr
daemonize = no
[www]
listen = $A:$P2
user = www-data
pm = static
pm.max_children = 3
EOF
    cat >n.conf <<EOF
daemon off; pid $D/n.pid; error_log stderr; worker_processes 2;
events {}
http { access_log off; client_body_temp_path $D/t1; proxy_temp_path $D/t2; fastcgi_temp_path $D/t3; uwsgi_temp_path $D/t4; scgi_temp_path $D/t5;
 server { listen $A:$P; location / { fastcgi_pass $A:$P2; include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME $D/x.php; } } }
EOF
    cat >x.php <<'EOF'
<?php header('Content-type: text/plain'); echo strlen(file_get_contents('php://input')), ' ', str_repeat('x', 100000), "
";
EOF
    chmod -R a+rX .
}

server2() {
    exec php-fpm8.2 -F -R -y $D/fpm.conf
}

server() {
    exec nginx -c $D/n.conf
}

client() {
    seq 1 3000 > b
    curl -s --data-binary @b http://$A:$P/ | sha256sum
    ab -q -n 1000 -c 10 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
