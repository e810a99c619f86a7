# Paramiko (SSH in Python), both ends: a command, and a file of 8 MB by SFTP.
# packages: python3-paramiko
# needs: python3:paramiko

setup() {
    cat >s.py <<'EOF'
import os, paramiko, socket, threading
key = paramiko.RSAKey.generate(2048)
class Server(paramiko.ServerInterface):
    def check_auth_password(self, user, password):
        return paramiko.AUTH_SUCCESSFUL if password == 'secret' else paramiko.AUTH_FAILED
    def check_channel_request(self, kind, number):
        return paramiko.OPEN_SUCCEEDED
    def check_channel_exec_request(self, channel, command):
        def run():
            channel.sendall(command[::-1] * 1000)
            channel.send_exit_status(3)
            channel.close()
        threading.Timer(0.1, run).start()
        return True
class Files(paramiko.SFTPServerInterface):
    def open(self, path, flags, attr):
        handle = paramiko.SFTPHandle(flags)
        name = os.path.basename(path)
        if flags & os.O_CREAT:
            handle.writefile = open(name, 'wb')
        else:
            handle.readfile = open(name, 'rb')
        return handle
    def stat(self, path):
        return paramiko.SFTPAttributes.from_stat(os.stat(os.path.basename(path)))
listener = socket.create_server((os.environ['A'], int(os.environ['P'])))
while True:
    transport = paramiko.Transport(listener.accept()[0])
    transport.add_server_key(key)
    transport.set_subsystem_handler('sftp', paramiko.SFTPServer, Files)
    transport.start_server(server=Server())
EOF
    cat >c.py <<'EOF'
import os, paramiko
c = paramiko.SSHClient()
c.set_missing_host_key_policy(paramiko.AutoAddPolicy())
c.connect(os.environ['A'], int(os.environ['P']), 'ann', 'secret', allow_agent=False, look_for_keys=False)
for n in range(5):
    _, out, _ = c.exec_command('x' * n + 'y')
    print(len(out.read()), out.channel.recv_exit_status())
data = os.urandom(8000000)
open('a', 'wb').write(data)
f = c.open_sftp()
f.put('a', 'b')
f.get('b', 'c')
print(open('c', 'rb').read() == data)
f.close()
c.close()
EOF
}

server() {
    exec /usr/bin/python3 s.py
}

client() {
    /usr/bin/python3 c.py
}
