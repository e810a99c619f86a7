# PostgreSQL with a standby: pg_basebackup, and replication.
# packages: postgresql postgresql-contrib
# needs: postgres pgbench
# as: postgres

setup() {
    /usr/lib/postgresql/*/bin/initdb -D $D/one -A trust -N >/dev/null
    echo "host all all 0.0.0.0/0 trust
host replication all 0.0.0.0/0 trust" >> one/pg_hba.conf
}

server() {
    exec /usr/lib/postgresql/*/bin/postgres -D $D/one -h $A -p $P -k $D -c wal_level=replica -c fsync=off
}

server2() {
    pg_basebackup -h $A -p $P -D $D/two -R -X stream -c fast
    exec /usr/lib/postgresql/*/bin/postgres -D $D/two -h $A -p $P2 -k $D -c hot_standby=on -c fsync=off
}

client() {
    export PGHOST=$A PGUSER=postgres PGDATABASE=postgres
    pgbench -p $P -q -i -s 3 2>/dev/null
    pgbench -p $P -n -c 4 -j 2 -t 200 2>&1 | grep -E 'processed|failed'
    psql -p $P -Atc 'set synchronous_commit = on' -c 'create table last as select 1 as n'
    for i in $(seq 1 100); do psql -p $P2 -Atc 'select n from last' 2>/dev/null && break; sleep 0.1; done
    [ "$(psql -p $P -Atc 'copy (select * from pgbench_accounts order by aid) to stdout' | sha256sum)" = "$(psql -p $P2 -Atc 'copy (select * from pgbench_accounts order by aid) to stdout' | sha256sum)" ] && echo same
    psql -p $P -Atc 'select count(*), state from pg_stat_replication group by state'
}
