# Mercurial's server: clone and push.
# packages: mercurial
# needs: hg

setup() {
    printf '[ui]\nusername = a\n[web]\nallow_push = *\npush_ssl = false\n' > .hgrc
    hg init r
    cp -r /usr/share/perl5 r/
    hg -R r -q addremove
    hg -R r -q commit -m one
}

server() {
    exec hg -R r serve -a $A -p $P --prefix x -n x
}

client() {
    hg -q clone http://$A:$P/x c
    diff -r r/perl5 c/perl5 && echo same
    head -c 3000000 /dev/urandom > c/big
    hg -R c -q commit -A -m two
    hg -R c -q push && hg -R r cat -r tip r/big | cmp - c/big && echo same
}
