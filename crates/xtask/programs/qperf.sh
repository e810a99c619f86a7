# qperf: bandwidth and latency.
# packages: qperf
# needs: qperf

server() {
    exec qperf -lp $P
}

client() {
    qperf -lp $P -t 1 $A tcp_bw tcp_lat | grep -c =
}
