# ffmpeg over TCP: one listens, another sends.
# packages: ffmpeg
# needs: ffmpeg

setup() {
    ffmpeg -v error -f lavfi -i testsrc=size=320x240:rate=25:duration=4 -c:v rawvideo -pix_fmt yuv420p in.nut
}

# No more of them than the client has use for: the next would take the last one's place on the board, and what it had done
# would be forgotten.
server() {
    n=0
    while [ $n -lt 3 ]; do
        ffmpeg -v error -i "tcp://$A:$P?listen=1" -c copy -f framemd5 -y out.new </dev/null && mv out.new out && n=$((n + 1))
    done
    sleep 1000
}

client() {
    for i in 1 2 3; do
        rm -f out
        for k in $(seq 1 50); do ffmpeg -v quiet -i in.nut -c copy -f nut "tcp://$A:$P" </dev/null && break; sleep 0.1; done
        for k in $(seq 1 100); do [ -e out ] && break; sleep 0.1; done
        grep -v '^#' out | sha256sum
        sleep 0.3
    done
}
