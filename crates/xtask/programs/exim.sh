# Exim, and swaks: three letters.
# packages: exim4-daemon-light swaks
# needs: exim4 swaks
# stays: it uses stdio on the socket
# pause: 1

setup() {
    cat >e.conf <<EOF
daemon_smtp_ports = $P
local_interfaces = $A
spool_directory = $D/s
log_file_path = $D/s/%slog
primary_hostname = x.y
domainlist local = x.y
acl_smtp_rcpt = a
acl_smtp_data = a
begin acl
a:
 accept
begin routers
d:
 driver = accept
 transport = f
begin transports
f:
 driver = appendfile
 file = $D/s/mbox
 user = Debian-exim
EOF
    mkdir s
    chown root e.conf
    chown -R Debian-exim s
    sed -i '/trusted_config/d' e.conf
}

server() {
    exec /usr/sbin/exim4 -C $D/e.conf -bdf -q1h
}

client() {
    seq 1 20000 > body
    for i in 1 2 3; do swaks --silent 1 -s $A:$P -f a@x.y -t b@x.y --body @body && echo sent; done
    grep -c '^20000$' s/mbox || true
}
