# PulseAudio over TCP: a sound is played, and recorded from the sink.
# packages: pulseaudio pulseaudio-utils
# needs: pulseaudio pactl pacat parec
# stays: its first message has credentials beside it, which only the kernel takes

setup() {
    mkdir run
    chmod 700 run
}

server() {
    exec env PULSE_RUNTIME_PATH=$D/run pulseaudio -n --daemonize=no --exit-idle-time=-1 --disable-shm --use-pid-file=no -L "module-native-protocol-tcp listen=$A port=$P auth-anonymous=1" -L 'module-null-sink sink_name=x'
}

client() {
    export PULSE_SERVER=tcp:$A:$P PULSE_RUNTIME_PATH=$D/run PULSE_COOKIE=$D/cookie
    pactl list short sinks | cut -f 2
    parec -d x.monitor --latency-msec=100 > got & sleep 1
    for i in 1 2 3; do head -c 200000 /dev/urandom | pacat -p -d x && echo played; done
    kill $!
    [ "$(wc -c < got)" -gt 300000 ] && echo recorded
    pactl load-module module-null-sink sink_name=y >/dev/null
    pactl list short sinks | cut -f 2
}
