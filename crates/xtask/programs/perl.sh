# Perl's HTTP::Daemon, which forks, and LWP.
# packages: libhttp-daemon-perl libwww-perl
# needs: perl /usr/share/perl5/HTTP/Daemon.pm

setup() {
    cat >s.pl <<'EOF'
use HTTP::Daemon; use HTTP::Response;
my $d = HTTP::Daemon->new(LocalAddr=>$ENV{A},LocalPort=>$ENV{P},ReuseAddr=>1) or die;
$SIG{CHLD}='IGNORE';
while (my $c = $d->accept) { if (fork == 0) { while (my $r = $c->get_request) { $c->send_response(HTTP::Response->new(200,'OK',['X'=>'y'],'x'x50000 . length $r->content)); } exit } close $c }
EOF
    cat >c.pl <<'EOF'
use LWP::UserAgent; my $u = LWP::UserAgent->new(keep_alive=>2);
for my $i (1..200) { my $r = $u->post("http://$ENV{A}:$ENV{P}/", Content=>'z'x($i*100)); die $r->status_line unless length($r->content) == 50000+length($i*100) }
print "ok\n";
EOF
}

server() {
    exec perl s.pl
}

client() {
    perl c.pl
}
