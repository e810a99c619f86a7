# Guile's ports, and its web server and client.
# packages: guile-3.0
# needs: guile

setup() {
    cat >s.scm <<'EOF'
(use-modules (web server) (web request) (web response) (rnrs bytevectors))
(run-server
 (lambda (request body)
   (values '((content-type . (application/octet-stream)))
           (make-bytevector (+ 1000 (if body (bytevector-length body) 0)) 120)))
 'http (list #:addr (inet-pton AF_INET (getenv "A")) #:port (string->number (getenv "P"))))
EOF
    cat >e.scm <<'EOF'
(use-modules (ice-9 rdelim))
(define s (socket PF_INET SOCK_STREAM 0))
(setsockopt s SOL_SOCKET SO_REUSEADDR 1)
(bind s AF_INET (inet-pton AF_INET (getenv "A")) (string->number (getenv "P2")))
(listen s 5)
(let loop ()
  (let ((client (car (accept s))))
    (let again ((line (read-line client)))
      (unless (eof-object? line)
        (write-line (string-reverse line) client)
        (force-output client)
        (again (read-line client))))
    (close-port client))
  (loop))
EOF
    cat >c.scm <<'EOF'
(use-modules (ice-9 rdelim) (web client) (web uri) (web response) (rnrs bytevectors))
(define s (socket PF_INET SOCK_STREAM 0))
(connect s AF_INET (inet-pton AF_INET (getenv "A")) (string->number (getenv "P2")))
(do ((i 1 (+ i 1))) ((> i 1000))
  (let ((text (string-append (make-string i #\a) "b")))
    (write-line text s)
    (force-output s)
    (unless (string=? (read-line s) (string-reverse text)) (error "wrong" i))))
(close-port s)
(define url (string-append "http://" (getenv "A") ":" (getenv "P") "/"))
(do ((i 0 (+ i 1))) ((= i 30))
  (call-with-values (lambda () (http-request url #:method 'POST #:body (make-bytevector (* i 1000) 0) #:decode-body? #f))
    (lambda (response body)
      (unless (= (bytevector-length body) (+ 1000 (* i 1000))) (error "wrong" i)))))
(display "ok")
(newline)
EOF
}

server2() {
    exec guile --no-auto-compile e.scm
}

server() {
    exec guile --no-auto-compile s.scm
}

client() {
    guile --no-auto-compile c.scm
}
