# Node.js: a cluster of three workers, and HTTP/2.
# packages: nodejs
# needs: node

setup() {
    cat >s.js <<'EOF'
const cluster = require('cluster'), http = require('http');
if (cluster.isPrimary) for (let i = 0; i < 3; i++) cluster.fork();
else http.createServer((q, r) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => r.end('x'.repeat(100000) + n)); }).listen(process.env.P, process.env.A);
EOF
    cat >h2.js <<'EOF'
require('http2').createServer((q, r) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => r.end('x'.repeat(100000) + n)); }).listen(process.env.P2, process.env.A);
EOF
    cat >c.js <<'EOF'
const http = require('http'), http2 = require('http2'), assert = require('assert');
const one = n => new Promise((done, fail) => {
  const q = http.request({ host: process.env.A, port: process.env.P, method: 'POST' }, r => {
    let t = ''; r.on('data', d => t += d); r.on('end', () => done(t)); });
  q.on('error', fail); q.end('z'.repeat(n)); });
const over = (s, n) => new Promise((done, fail) => {
  const q = s.request({ ':path': '/', ':method': 'POST' }); let t = '';
  q.setEncoding('utf8'); q.on('data', d => t += d); q.on('end', () => done(t)); q.on('error', fail); q.end('z'.repeat(n)); });
(async () => {
  for (let k = 0; k < 10; k++) (await Promise.all([...Array(20).keys()].map(n => one(n * 1000)))).forEach((t, n) => assert.equal(t.slice(100000), String(n * 1000)));
  const s = http2.connect(`http://${process.env.A}:${process.env.P2}`);
  for (let k = 0; k < 10; k++) (await Promise.all([...Array(20).keys()].map(n => over(s, n * 1000)))).forEach((t, n) => assert.equal(t.slice(100000), String(n * 1000)));
  s.close();
  console.log('ok');
})();
EOF
}

server() {
    exec node s.js
}

server2() {
    exec node h2.js
}

client() {
    node c.js
}
