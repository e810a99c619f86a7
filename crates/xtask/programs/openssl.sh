# openssl s_server and s_client: TLS 1.2 and 1.3.
# packages: openssl curl
# needs: openssl curl

setup() {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 3 -subj /CN=localhost 2>/dev/null
    seq 1 300000 > a.txt
}

server() {
    exec openssl s_server -quiet -accept $A:$P -key k.pem -cert c.pem -WWW
}

client() {
    for t in -tls1_2 -tls1_3; do printf 'GET /a.txt HTTP/1.0

' | openssl s_client -quiet -ign_eof $t -connect $A:$P 2>/dev/null | sha256sum; done
    curl -sk https://$A:$P/a.txt | sha256sum
}
