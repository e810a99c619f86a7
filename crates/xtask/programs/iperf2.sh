# iperf 2: four streams, and reversed.
# packages: iperf
# needs: iperf

server() {
    exec iperf -s -B $A -p $P
}

client() {
    iperf -c $A -p $P -t 1 -P 4 | grep -c SUM
    iperf -c $A -p $P -t 1 -R | grep -c sec
}
