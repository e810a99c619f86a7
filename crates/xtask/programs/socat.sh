# socat that forks and runs a program on the socket.
# packages: socat
# needs: socat

server() {
    exec socat TCP-LISTEN:$P,bind=$A,fork,reuseaddr EXEC:cat
}

client() {
    seq 1 300000 | socat -t 5 - TCP:$A:$P | sha256sum
    for i in 1 2 3 4 5 6 7 8 9; do echo $i | socat -t 5 - TCP:$A:$P; done
    seq 1 300000 | socat -t 5 -b 100 - TCP:$A:$P,nodelay | sha256sum
}
