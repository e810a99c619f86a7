# Icecast: ffmpeg sends a stream, and curl listens.
# packages: icecast2 ffmpeg curl
# needs: icecast2 ffmpeg curl

setup() {
    cat >i.xml <<EOF
<icecast>
<limits><clients>50</clients><sources>4</sources><queue-size>4000000</queue-size><burst-size>3000000</burst-size></limits>
<authentication><source-password>s</source-password><admin-user>a</admin-user><admin-password>s</admin-password></authentication>
<hostname>localhost</hostname>
<listen-socket><port>$P</port><bind-address>$A</bind-address></listen-socket>
<paths><basedir>$D</basedir><logdir>$D</logdir><webroot>/usr/share/icecast2/web</webroot><adminroot>/usr/share/icecast2/admin</adminroot></paths>
<logging><accesslog>a.log</accesslog><errorlog>e.log</errorlog></logging>
<security><chroot>0</chroot><changeowner><user>nobody</user><group>nogroup</group></changeowner></security>
</icecast>
EOF
    chmod a+rwx .
    ffmpeg -v error -f lavfi -i sine=frequency=440:duration=60 -c:a flac -f ogg a.ogg
}

server() {
    exec icecast2 -c $D/i.xml
}

client() {
    ffmpeg -v error -re -i a.ogg -c copy -content_type application/ogg -f ogg icecast://source:s@$A:$P/a.ogg 2>/dev/null &
    for i in $(seq 1 100); do curl -s http://$A:$P/status-json.xsl | grep -q a.ogg && break; sleep 0.1; done
    for k in 1 2 3; do curl -s -m 20 http://$A:$P/a.ogg | head -c 50000 > got$k & done
    sleep 6
    curl -s -u a:s "http://$A:$P/admin/killsource?mount=/a.ogg" | grep -o 'Source Removed'
    wait
    for k in 1 2 3; do wc -c < got$k; head -c 4 got$k; echo; done
}
