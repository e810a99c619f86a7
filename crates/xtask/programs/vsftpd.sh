# vsftpd: FTP with curl and lftp.
# packages: vsftpd lftp curl
# needs: vsftpd lftp curl
# stays: sockets are passed between its processes

setup() {
    cat >v.conf <<EOF
listen=YES
listen_address=$A
listen_port=$P
anonymous_enable=YES
anon_root=$D/ftp
anon_upload_enable=YES
write_enable=YES
background=NO
run_as_launching_user=NO
no_anon_password=YES
seccomp_sandbox=NO
EOF
    mkdir -p ftp/in /var/run/vsftpd/empty
    chown ftp ftp/in
    seq 1 300000 > ftp/a.txt
    chown root:root v.conf
    chmod a+rx . ftp
}

server() {
    exec vsftpd $D/v.conf
}

client() {
    curl -s ftp://$A:$P/a.txt | sha256sum
    curl -s -T ftp/a.txt ftp://$A:$P/in/b.txt
    sleep 0.2
    cmp ftp/a.txt ftp/in/b.txt && echo same
    lftp -c "open ftp://$A:$P; cls -1; get a.txt -o g.txt"
    cmp ftp/a.txt g.txt && echo same
}
