# Redis with redis-py and redis-benchmark.
# packages: redis-server redis-tools python3-redis
# needs: redis-server redis-benchmark python3:redis

server() {
    exec redis-server --port $P --bind $A --save '' --daemonize no --protected-mode no
}

client() {
    /usr/bin/python3 - <<'EOF'
import redis,os,threading
r=redis.Redis(os.environ['A'],int(os.environ['P']))
for i in range(2000): r.set(i,'x'*i)
p=r.pipeline()
for i in range(2000): p.get(i)
print(sum(map(len,p.execute())))
s=r.pubsub(); s.subscribe('c'); s.get_message(timeout=5)
r.publish('c','hello'); print(s.get_message(timeout=5)['data'])
print(r.blpop('none',1))
EOF
    redis-benchmark -h $A -p $P -q -n 20000 -t get,set -P 16 | tr '\r' '\n' | grep -c 'requests per second'
}
