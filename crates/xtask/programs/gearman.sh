# Gearman: a worker, and 200 jobs
# packages: gearman-job-server gearman-tools
# needs: gearmand gearman

server() {
    exec gearmand -L $A -p $P -l stderr
}

client() {
    gearman -h $A -p $P -w -c 200 -f count -- wc -c &
    seq 1 200 | while read n; do head -c $((n * 100)) /dev/zero | gearman -h $A -p $P -f count; done | sha256sum
    wait
}
