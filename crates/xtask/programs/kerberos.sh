# MIT Kerberos: a KDC over TCP, and kinit.
# packages: krb5-kdc krb5-admin-server krb5-user
# needs: krb5kdc kadmin.local kinit kvno

setup() {
    cat >krb5.conf <<EOF
[libdefaults]
  default_realm = X
  udp_preference_limit = 1
  dns_lookup_kdc = false
  rdns = false
[realms]
  X = {
    kdc = $A:$P
  }
EOF
    cat >kdc.conf <<EOF
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = $A:$P
[realms]
  X = {
    database_name = $D/principal
    key_stash_file = $D/stash
  }
[logging]
  kdc = FILE:$D/log
EOF
    export KRB5_CONFIG=$D/krb5.conf KRB5_KDC_PROFILE=$D/kdc.conf
    kdb5_util create -s -r X -P secret >/dev/null 2>&1
    kadmin.local -q 'addprinc -pw secret ann' >/dev/null 2>&1
    for i in 1 2 3 4 5 6 7 8 9; do kadmin.local -q "addprinc -randkey s$i/x" >/dev/null 2>&1; done
}

server() {
    export KRB5_CONFIG=$D/krb5.conf KRB5_KDC_PROFILE=$D/kdc.conf
    exec krb5kdc -n -w 2
}

client() {
    export KRB5_CONFIG=$D/krb5.conf KRB5CCNAME=FILE:$D/cc
    for i in 1 2 3 4 5; do echo secret | kinit ann >/dev/null && echo in; done
    echo wrong | kinit ann >/dev/null 2>&1 || echo kept out
    for i in 1 2 3 4 5 6 7 8 9; do kvno s$i/x; done
    klist | grep -c '/x@X'
}
