# nuttcp, both ways.
# packages: nuttcp
# needs: nuttcp

server() {
    exec nuttcp -S --nofork -p $P2 -P $P
}

client() {
    nuttcp -P $P -p $P2 -T 1 $A | grep -c Mbps;nuttcp -r -P $P -p $P2 -T 1 $A | grep -c Mbps
}
