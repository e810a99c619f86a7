# Celery: a worker of four processes, with Redis.
# packages: python3-celery redis-server python3-redis
# needs: redis-server python3:celery python3:redis

setup() {
    cat >tasks.py <<'EOF'
import os, celery
url = 'redis://%s:%s/0' % (os.environ['A'], os.environ['P'])
app = celery.Celery('tasks', broker=url, backend=url)
@app.task
def turned(text):
    return text[::-1]
EOF
    cat >c.py <<'EOF'
import celery, tasks
texts = ['a' * n * 10 + 'b' for n in range(200)]
group = celery.group(tasks.turned.s(text) for text in texts)()
print(group.get(timeout=60) == [text[::-1] for text in texts])
EOF
}

server() {
    exec redis-server --port $P --bind $A --save '' --daemonize no --protected-mode no
}

client() {
    export C_FORCE_ROOT=1
    /usr/bin/python3 -m celery -q -A tasks worker -c 4 --loglevel ERROR >/dev/null 2>&1 &
    /usr/bin/python3 c.py
    kill $!
    wait $!
}
