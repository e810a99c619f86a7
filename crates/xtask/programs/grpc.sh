# gRPC: calls of up to 300 KB, and streams.
# packages: python3-grpcio
# needs: python3:grpc

setup() {
    cat >s.py <<EOF
import grpc, os, concurrent.futures as f
def h(r,c): return r[::-1]
def st(it,c):
    for r in it: yield r
s=grpc.server(f.ThreadPoolExecutor(4))
s.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('x.Y',{'Z':grpc.unary_unary_rpc_method_handler(h),'S':grpc.stream_stream_rpc_method_handler(st)}),))
s.add_insecure_port('$A:'+os.environ['P']); s.start(); s.wait_for_termination()
EOF
    cat >c.py <<EOF
import grpc, os
c=grpc.insecure_channel('$A:'+os.environ['P'])
u=c.unary_unary('/x.Y/Z'); b=os.urandom(1000000)
for i in range(300): assert u(b[:i*1000])==b[:i*1000][::-1]
s=c.stream_stream('/x.Y/S'); n=sum(len(r) for r in s(iter([b[:20000]]*200))); print(n)
EOF
}

server() {
    exec /usr/bin/python3 s.py
}

client() {
    /usr/bin/python3 c.py
}
