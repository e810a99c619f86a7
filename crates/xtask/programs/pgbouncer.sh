# PgBouncer in front of PostgreSQL, pgbench and psql.
# packages: postgresql postgresql-contrib pgbouncer
# needs: postgres pgbouncer pgbench
# as: postgres

setup() {
    cat >b.ini <<EOF
[databases]
postgres = host=$A port=$P2
[pgbouncer]
listen_addr = $A
listen_port = $P
auth_type = trust
auth_file = $D/users
pool_mode = transaction
unix_socket_dir =
EOF
    echo '"postgres" ""' >users
    /usr/lib/postgresql/*/bin/initdb -D $D/db -A trust -N >/dev/null
}

server2() {
    exec /usr/lib/postgresql/*/bin/postgres -D $D/db -h $A -p $P2 -k $D
}

server() {
    exec pgbouncer b.ini
}

client() {
    export PGHOST=$A PGPORT=$P PGUSER=postgres PGDATABASE=postgres
    pgbench -q -i -s 2 2>/dev/null
    psql -Atc 'select count(*) from pgbench_accounts'
    pgbench -n -c 8 -j 2 -t 100 2>&1 | grep -E 'processed|failed'
    psql -Atc 'copy pgbench_accounts to stdout' | wc -l
}
