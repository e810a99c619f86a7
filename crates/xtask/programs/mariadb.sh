# MariaDB: large rows, and a dump.
# packages: mariadb-server mariadb-client
# needs: mariadbd mariadb

setup() {
    mkdir db
    chown mysql db
    mariadb-install-db --user=mysql --datadir=$D/db --auth-root-authentication-method=normal >/dev/null 2>&1
}

server() {
    exec mariadbd --no-defaults --skip-grant-tables --skip-name-resolve --user=mysql --datadir=$D/db --bind-address=$A --port=$P --socket=$D/db/s --pid-file=$D/db/pid
}

client() {
    M="mariadb -h $A -P $P -u root --protocol=tcp"
    $M -e 'create database t; create table t.t (a int, b mediumtext)'
    for i in 1 2 3 4 5 6 7 8 9 10; do $M -e "insert into t.t values ($i, repeat('x',100000))"; done
    $M -Ne 'select count(*), sum(length(b)), md5(group_concat(b)) from t.t'
    mariadb-dump -h $A -P $P -u root --protocol=tcp --skip-comments t | sha256sum
}
