# Tomcat (Java NIO), and ab.
# packages: tomcat10 default-jre-headless apache2-utils curl
# needs: java ab curl /usr/share/tomcat10/bin/catalina.sh
# pause: 4

setup() {
    mkdir -p b/conf b/logs b/temp b/work b/webapps/ROOT
    cp -r /etc/tomcat10/* b/conf/ 2>/dev/null || true
    sed -i "s/port=\"8080\"/port=\"$P\" address=\"$A\"/; s/port=\"8005\"/port=\"-1\"/" b/conf/server.xml
    seq 1 100000 > b/webapps/ROOT/a.txt
}

server() {
    exec env CATALINA_BASE=$D/b CATALINA_HOME=/usr/share/tomcat10 /usr/share/tomcat10/bin/catalina.sh run
}

client() {
    curl -s http://$A:$P/a.txt | sha256sum
    ab -q -n 1000 -c 10 -k http://$A:$P/a.txt | grep -E 'Complete|Failed|Non-2xx'
}
