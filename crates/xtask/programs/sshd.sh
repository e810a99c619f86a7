# OpenSSH: ssh, scp, sftp.
# packages: openssh-server openssh-client openssh-sftp-server
# needs: sshd ssh
# stays: another program than the one that accepts uses the socket

setup() {
    cat >sshd.conf <<EOF
Port $P
ListenAddress $A
HostKey $D/host
AuthorizedKeysFile $D/me.pub
PidFile none
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
UsePAM no
EOF
    mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f host
    ssh-keygen -q -t ed25519 -N '' -f me
    seq 1 500000 > a.txt
}

server() {
    exec /usr/sbin/sshd -D -e -f $D/sshd.conf
}

client() {
    O='-q -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i me'
    ssh $O -p $P $A "echo hi; sha256sum <$D/a.txt; exit 3"
    echo $?
    scp $O -P $P a.txt $A:$D/b.txt
    cmp a.txt b.txt && echo same
    printf 'get %s/a.txt c.txt
ls %s/me.pub
' $D $D | sftp -b - $O -P $P $A | grep -c pub
    cmp a.txt c.txt && echo same
    head -c 30000000 /dev/zero | ssh $O -p $P $A 'cat' | sha256sum
}
