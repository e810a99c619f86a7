# Sockets of Bash, Zsh and GNU Awk.
# packages: zsh gawk bash
# needs: zsh gawk bash
# stays: they use stdio on the socket

setup() {
    cat >s.zsh <<'EOF'
zmodload zsh/net/tcp
ztcp -l $P2
listener=$REPLY
while ztcp -a $listener; do
    fd=$REPLY
    while read -r -u $fd line; do print -r -u $fd -- "z$line"; done
    ztcp -c $fd
done
EOF
    cat >s.awk <<'EOF'
BEGIN {
    service = "/inet/tcp/" ENVIRON["P"] "/0/0"
    while (1) {
        while ((service |& getline line) > 0) {
            print "a" line |& service
            fflush(service)
        }
        close(service)
    }
}
EOF
    cat >c.zsh <<'EOF'
zmodload zsh/net/tcp
ztcp $A $P2
fd=$REPLY
for i in {1..2000}; do
    print -u $fd $i
    read -u $fd line
    [[ $line == z$i ]] || print wrong $line
done
ztcp -c $fd
print zsh
EOF
    cat >c.awk <<'EOF'
BEGIN {
    peer = "/inet/tcp/0/" ENVIRON["A"] "/" ENVIRON["P2"]
    for (i = 1; i <= 2000; i++) {
        print i |& peer
        peer |& getline line
        if (line != "z" i) print "wrong", line
    }
    close(peer)
    print "awk"
}
EOF
    cat >c.bash <<'EOF'
exec 5<>/dev/tcp/$A/$P
for i in {1..2000}; do
    echo $i >&5
    read -r -u 5 line
    [[ $line == a$i ]] || echo wrong $line
done
exec 5>&-
echo bash
EOF
}

server2() {
    exec zsh -f s.zsh
}

server() {
    exec gawk -f s.awk
}

client() {
    zsh -f c.zsh
    gawk -f c.awk
    bash c.bash
}
