# Dask: a scheduler, two workers, and a client.
# packages: python3-distributed
# needs: python3:distributed

setup() {
    cat >c.py <<'EOF'
import os
from distributed import Client
def square(n): return n * n
def big(n): return bytes([n]) * 1000000
def size(*parts): return sum(map(len, parts))
with Client('tcp://%s:%s' % (os.environ['A'], os.environ['P'])) as c:
    c.wait_for_workers(2)
    print(sum(c.gather(c.map(square, range(500)))))
    print(c.submit(size, *c.map(big, range(20))).result())
    print([hash(b) == hash(bytes([n]) * 1000000) for n, b in enumerate(c.gather(c.map(big, range(5))))])
EOF
}

server() {
    exec /usr/bin/python3 -m distributed.cli.dask_scheduler --host $A --port $P --no-dashboard --no-show
}

server2() {
    exec /usr/bin/python3 -m distributed.cli.dask_worker tcp://$A:$P --host $A --worker-port $P2 --no-nanny --no-dashboard --nthreads 1 --local-directory $D/1
}

server3() {
    exec /usr/bin/python3 -m distributed.cli.dask_worker tcp://$A:$P --host $A --worker-port $P3 --no-nanny --no-dashboard --nthreads 1 --local-directory $D/2
}

client() {
    /usr/bin/python3 c.py
}
