# tcpserver: a program for each connection, and tcpclient.
# packages: ucspi-tcp
# needs: tcpserver tcpclient
# stays: another program than the one that accepts uses the socket

server() {
    exec tcpserver -q -H -R -l x $A $P sh -c 'echo from $TCPLOCALPORT >&2; exec cat'
}

client() {
    seq 1 300000 > a.txt
    for i in 1 2 3; do tcpclient -H -R -l x $A $P sh -c 'cat <a.txt >&7 & head -c 1988895 <&6 | sha256sum; kill $! 2>/dev/null'; done
    for i in 1 2 3 4 5; do tcpclient -H -R -l x $A $P sh -c "echo $i >&7; head -n 1 <&6"; done
}
