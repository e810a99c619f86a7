# Open MPI over TCP: four processes.
# packages: openmpi-bin libopenmpi-dev gcc libc6-dev
# needs: mpirun mpicc
# one host

setup() {
    cat >m.c <<'EOF'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int c,char**v){MPI_Init(&c,&v);int r,n;MPI_Comm_rank(MPI_COMM_WORLD,&r);MPI_Comm_size(MPI_COMM_WORLD,&n);
long s=0;char*b=calloc(1,4<<20);for(int k=0;k<300;k++){int l=(k*14001)%(4<<20);long a=r+k,t;MPI_Allreduce(&a,&t,1,MPI_LONG,MPI_SUM,MPI_COMM_WORLD);s+=t;
MPI_Status st;MPI_Sendrecv_replace(b,l,MPI_CHAR,(r+1)%n,0,(r+n-1)%n,0,MPI_COMM_WORLD,&st);}
if(!r)printf("%ld\n",s);MPI_Finalize();}
EOF
    mpicc -o m m.c
}

client() {
    mpirun --allow-run-as-root --oversubscribe -n 4 --mca btl tcp,self --mca btl_tcp_if_include lo --mca pml ob1 ./m
}
