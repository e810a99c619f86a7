# Tornado, and ab.
# packages: python3-tornado apache2-utils curl
# needs: ab curl python3:tornado

setup() {
    cat >app.py <<EOF
import tornado.ioloop, tornado.web, os
class M(tornado.web.RequestHandler):
    def post(self): self.write('x'*100000+str(len(self.request.body)))
    get=post
a=tornado.web.Application([('/',M)]); a.listen(int(os.environ['P']),'$A'); tornado.ioloop.IOLoop.current().start()
EOF
}

server() {
    exec /usr/bin/python3 app.py
}

client() {
    seq 1 50000 > b
    for i in 1 2 3 4 5 6 7 8; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 500 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
