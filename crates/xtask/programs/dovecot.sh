# Dovecot: a mailbox of 200 letters by IMAP
# packages: dovecot-imapd
# needs: dovecot
# stays: its processes are started with an environment of their own

setup() {
    cat >d.conf <<EOF
base_dir = $D/run
log_path = $D/log
protocols = imap
listen = $A
ssl = no
disable_plaintext_auth = no
mail_location = mbox:$D/mail
first_valid_uid = 0
default_internal_user = dovecot
default_login_user = dovenull
service imap-login {
  inet_listener imap {
    port = $P
  }
  inet_listener imaps {
    port = 0
  }
}
passdb {
  driver = static
  args = password=secret
}
userdb {
  driver = static
  args = uid=mail gid=mail home=$D/mail
}
EOF
    mkdir mail run
    chown mail mail
}

server() {
    exec dovecot -F -c $D/d.conf
}

client() {
    python3 - <<'EOF'
import imaplib, os
box = imaplib.IMAP4(os.environ['A'], int(os.environ['P']))
box.login('ann', 'secret')
for n in range(200):
    letter = b'Subject: %d\r\n\r\n' % n + b'x' * (n * 100) + b'\r\n'
    assert box.append('INBOX', None, None, letter)[0] == 'OK'
count = int(box.select('INBOX')[1][0])
sizes = [len(part[1]) for part in box.fetch('1:*', '(RFC822)')[1] if isinstance(part, tuple)]
print(count, sum(sizes))
box.logout()
EOF
}
