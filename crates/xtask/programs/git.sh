# git daemon: clone and push.
# packages: git
# needs: git
# stays: another program than the one that accepts uses the socket

setup() {
    git init -q r
    cd r
    git config user.email a@b
    git config user.name a
    cp -r /usr/share/perl5 .
    git add -A
    git commit -qm one
    git config daemon.receivepack true
    git config receive.denyCurrentBranch ignore
}

server() {
    exec git daemon --export-all --base-path=$D --port=$P --listen=$A --reuseaddr
}

client() {
    git clone -q git://$A:$P/r c && diff -r r/perl5 c/perl5 && echo same
    cd c
    git config user.email a@b
    git config user.name a
    head -c 3000000 /dev/urandom > big
    git add big
    git commit -qm two
    git push -q origin HEAD:other
    git ls-remote -q | wc -l
}
