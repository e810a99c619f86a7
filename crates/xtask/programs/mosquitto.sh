# Mosquitto: MQTT with quality of service 2.
# packages: mosquitto mosquitto-clients
# needs: mosquitto mosquitto_sub

setup() {
    cat >m.conf <<EOF
listener $P $A
allow_anonymous true
EOF
}

server() {
    exec mosquitto -c $D/m.conf
}

client() {
    mosquitto_sub -h $A -p $P -t t -q 2 -C 200 > got & sleep 0.5
    seq 1 200 | mosquitto_pub -h $A -p $P -t t -l -q 2
    wait
    sha256sum < got
    wc -l < got
}
