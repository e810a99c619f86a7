# SBCL's streams, and Python.
# packages: sbcl
# needs: sbcl

setup() {
    cat >s.lisp <<'EOF'
(require :sb-bsd-sockets)
(require :sb-posix)
(use-package :sb-bsd-sockets)
(defun serve (client)
  (let ((stream (socket-make-stream client :input t :output t :buffering :full)))
    (loop for line = (read-line stream nil)
          while line do (write-line line stream) (finish-output stream))
    (close stream)))
(let ((listener (make-instance 'inet-socket :type :stream :protocol :tcp)))
  (setf (sockopt-reuse-address listener) t)
  (socket-bind listener (make-inet-address (sb-posix:getenv "A")) (parse-integer (sb-posix:getenv "P")))
  (socket-listen listener 5)
  (loop (serve (socket-accept listener))))
EOF
}

server() {
    exec sbcl --script s.lisp
}

client() {
    python3 - <<'EOF'
import socket,os
s=socket.create_connection((os.environ['A'],int(os.environ['P'])));f=s.makefile('rb')
for i in range(3000): s.sendall(b'x'*i+b'\n'); assert len(f.readline())==i+1
print('ok')
EOF
}
