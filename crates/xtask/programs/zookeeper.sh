# ZooKeeper (Java): its words of four letters.
# packages: zookeeper socat default-jre-headless
# needs: java socat /usr/share/java/zookeeper.jar
# stays: the server ends each connection with its first answer

setup() {
    cat >zoo.cfg <<EOF
tickTime=500
dataDir=$D/z
clientPort=$P
clientPortAddress=$A
admin.enableServer=false
4lw.commands.whitelist=*
EOF
    mkdir z
}

server() {
    exec java -cp /etc/zookeeper/conf:/usr/share/java/zookeeper.jar:/usr/share/java/*:/usr/share/zookeeper/* org.apache.zookeeper.server.quorum.QuorumPeerMain $D/zoo.cfg
}

client() {
    for i in 1 2 3 4 5; do echo ruok | socat -t 3 - TCP:$A:$P; done
    echo
}
