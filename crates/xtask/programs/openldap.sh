# OpenLDAP: 300 entries added and searched.
# packages: slapd ldap-utils
# needs: slapd ldapadd

setup() {
    cat >s.conf <<EOF
include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile $D/pid
database mdb
suffix dc=x
rootdn cn=a,dc=x
rootpw s
directory $D/db
EOF
    cat >a.ldif <<'EOF'
dn: dc=x
objectClass: dcObject
objectClass: organization
o: x
dc: x
EOF
    mkdir db
    for i in $(seq 1 300); do printf '
dn: cn=p%d,dc=x
objectClass: person
sn: %d
cn: p%d
' $i $i $i; done >> a.ldif
}

server() {
    exec slapd -d 0 -f s.conf -h ldap://$A:$P
}

client() {
    ldapadd -x -H ldap://$A:$P -D cn=a,dc=x -w s -f a.ldif | tail -2
    ldapsearch -x -LLL -H ldap://$A:$P -b dc=x | sha256sum
    for i in 1 2 3; do ldapsearch -x -LLL -H ldap://$A:$P -b dc=x cn=p$i sn; done
}
