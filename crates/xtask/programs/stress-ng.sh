# stress-ng: sockets in many ways, sendfile and epoll.
# packages: stress-ng
# needs: stress-ng
# one host

client() {
    for options in '--sock 2 --sock-ops 400 --sock-opts random' '--sock 2 --sock-ops 200 --sock-nodelay' '--sockmany 1 --sockmany-ops 200' '--sockabuse 1 --sockabuse-ops 50' '--epoll 2 --epoll-ops 2000 --epoll-domain ipv4'; do
        stress-ng $options --sock-domain ipv4 --timeout 15 --verify 2>&1 | grep -oE 'successful run completed|fail.*' | sort -u
    done
}
