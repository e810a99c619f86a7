# rsyslog: one passes on to another over TCP what logger sends.
# packages: rsyslog bsdutils
# needs: rsyslogd logger

setup() {
    cat >two.conf <<EOF
global(workDirectory="$D")
module(load="imptcp")
template(name="t" type="string" string="%msg%\n")
input(type="imptcp" address="$A" port="$P2")
action(type="omfile" file="$D/got" template="t")
EOF
    cat >one.conf <<EOF
global(workDirectory="$D")
module(load="imtcp")
input(type="imtcp" address="$A" port="$P")
action(type="omfwd" target="$A" port="$P2" protocol="tcp" tcp_framing="octet-counted" queue.type="linkedList" queue.saveOnShutdown="off")
EOF
}

server2() {
    exec rsyslogd -n -i $D/two.pid -f $D/two.conf
}

server() {
    exec rsyslogd -n -i $D/one.pid -f $D/one.conf
}

client() {
    seq 1 20000 | logger -T -n $A -P $P --rfc3164 -t x
    seq 20001 30000 | logger -T -n $A -P $P --octet-count -t x
    for i in 1 2 3 4 5 6 7 8 9 10; do [ "$(wc -l < got)" -ge 30000 ] && break; sleep 1; done
    tr -d ' ' < got | sort -n | sha256sum
}
