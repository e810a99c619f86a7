# MariaDB with a replica.
# packages: mariadb-server mariadb-client
# needs: mariadbd mariadb

setup() {
    for db in one two; do
        mkdir $db
        chown mysql $db
        mariadb-install-db --user=mysql --datadir=$D/$db --auth-root-authentication-method=normal >/dev/null 2>&1
    done
    chmod a+rx .
}

run() {
    exec mariadbd --no-defaults --skip-name-resolve --user=mysql --datadir=$D/$1 --bind-address=$A --port=$2 --socket=$D/$1/s --pid-file=$D/$1/pid --server-id=$2 --log-bin=$D/$1/bin --init-file=$D/init
}

server() {
    printf "create user if not exists a identified by 'b';\ngrant all on *.* to a;\n" > init
    run one $P
}

server2() {
    run two $P2
}

client() {
    M="mariadb -h $A -u a -pb --protocol=tcp"
    $M -P $P2 -e "stop slave; change master to master_host='$A', master_port=$P, master_user='a', master_password='b', master_use_gtid=slave_pos; start slave"
    $M -P $P -e 'create database t; create table t.t (a int primary key, b mediumtext)'
    for i in $(seq 1 30); do $M -P $P -e "insert into t.t values ($i, repeat('x',100000 + $i))"; done
    for i in $(seq 1 100); do [ "$($M -P $P2 -Ne 'select count(*) from t.t' 2>/dev/null)" = 30 ] && break; sleep 0.1; done
    for port in $P $P2; do $M -P $port -Ne 'select count(*), sum(length(b)), md5(group_concat(b order by a)) from t.t'; done
    $M -P $P2 -e 'show slave status\G' | grep -E '_Running: |Last_.*Errno'
}
