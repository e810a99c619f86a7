# Xvfb over TCP: xdpyinfo, x11perf, xwd.
# packages: xvfb x11-utils x11-apps
# needs: Xvfb xdpyinfo x11perf xwd xprop

server() {
    exec Xvfb :$((P - 6000)) -listen tcp -nolisten unix -nolisten local -ac -noreset -screen 0 800x600x24
}

client() {
    export DISPLAY=$A:$((P - 6000))
    for i in 1 2 3 4 5; do xdpyinfo | grep -v -E 'name of display|focus' | sha256sum; done
    x11perf -repeat 1 -time 1 -noop -putimage500 -getimage500 -rect10 -prop -atom 2>&1 | grep -c 'reps @'
    xwd -root -silent | sha256sum
    xprop -root -f A 8s -set A "$(seq 1 20000)"
    xprop -root A | sha256sum
}
