# Starman (Perl), which forks before, and ab.
# packages: starman apache2-utils curl
# needs: starman ab curl

setup() {
    cat >app.psgi <<'EOF'
sub { my $e = shift; my $n = $e->{CONTENT_LENGTH} || 0; my $b = ''; $e->{'psgi.input'}->read($b, $n, length $b) while length $b < $n; [200, ['Content-Type', 'text/plain'], ['x' x 100000, length $b]] }
EOF
}

server() {
    exec starman --workers 3 --listen $A:$P --disable-proctitle app.psgi
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
