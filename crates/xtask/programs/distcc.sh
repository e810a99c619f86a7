# distcc: files in C and C++ are compiled on the other side.
# packages: distcc gcc g++
# needs: distccd distcc gcc g++
# as: daemon

setup() {
    for i in $(seq 1 12); do printf '#include <stdio.h>\nint f%d(int a) { printf("%%d\\n", a + %d); return a; }\n' $i $i > f$i.c; done
    for i in 1 2; do printf '#include <iostream>\nint g%d(int a) { std::cout << a + %d; return a; }\n' $i $i > g$i.cc; done
    mkdir t
}

server() {
    exec env TMPDIR=$D/t DISTCCD_PATH=/usr/bin:/bin distccd --daemon --no-detach --listen $A --port $P --allow 0.0.0.0/0 --jobs 4 --enable-tcp-insecure --log-file $D/log --log-level info
}

client() {
    export DISTCC_FALLBACK=0 DISTCC_DIR=$D/t
    for host in $A:$P/4 $A:$P/4,lzo; do
        export DISTCC_HOSTS=$host
        for i in $(seq 1 12); do distcc gcc -c f$i.c -o f$i.o || echo failed; done
        for i in 1 2; do distcc g++ -c g$i.cc -o g$i.o || echo failed; done
        cat f*.o g*.o | sha256sum
        rm -f ./*.o
    done
    grep -c COMPILE_OK log
}
