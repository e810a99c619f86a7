# Mojolicious: hypnotoad with three workers, and a client of websockets.
# packages: libmojolicious-perl apache2-utils curl
# needs: hypnotoad ab curl

setup() {
    cat >app.pl <<'EOF'
use Mojolicious::Lite -signatures;
app->config(hypnotoad => { listen => ["http://$ENV{A}:$ENV{P}"], workers => 3, pid_file => "$ENV{D}/pid" });
app->secrets(['x']);
app->log->level('fatal');
any '/' => sub ($c) { $c->render(text => 'x' x 100000 . length $c->req->body) };
websocket '/ws' => sub ($c) { $c->on(message => sub ($c, $m) { $c->send(scalar reverse $m) }) };
app->start;
EOF
    cat >c.pl <<'EOF'
use Mojo::UserAgent; use Mojo::IOLoop;
my $ua = Mojo::UserAgent->new; my $n = 1; my $bad = 0;
$ua->websocket("ws://$ENV{A}:$ENV{P}/ws" => sub { my ($ua, $tx) = @_;
  $tx->on(message => sub { my ($tx, $m) = @_; $bad++ if $m ne 'b' . 'a' x ($n * 50); $n++; $n > 500 ? $tx->finish : $tx->send('a' x ($n * 50) . 'b') });
  $tx->on(finish => sub { Mojo::IOLoop->stop }); $tx->send('a' x 50 . 'b') });
Mojo::IOLoop->start; print "$n $bad\n";
EOF
}

server() {
    exec hypnotoad -f app.pl
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
    perl c.pl
}
