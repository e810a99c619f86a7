# TigerVNC's server, and vncsnapshot.
# packages: tigervnc-standalone-server vncsnapshot x11-xserver-utils
# needs: Xtigervnc vncsnapshot

server() {
    exec Xtigervnc :$((P - 5900)) -rfbport $P -interface $A -SecurityTypes None -geometry 800x600 -depth 24 -br
}

client() {
    for i in 1 2 3; do
        for encoding in raw hextile zlib; do
            vncsnapshot -quiet -allowblank -encodings "$encoding" $A:$((P - 5900)) $encoding.jpg >/dev/null 2>&1
            sha256sum < $encoding.jpg
        done
    done
}
