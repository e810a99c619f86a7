# Tcl's event loop, and Python.
# packages: tcl8.6
# needs: tclsh8.6

setup() {
    cat >s.tcl <<'EOF'
proc acc {c a p} { fconfigure $c -blocking 0 -translation lf; fileevent $c readable [list rd $c] }
proc rd {c} { while {[gets $c l] >= 0} { puts $c $l }; flush $c; if {[eof $c]} { close $c } }
socket -server acc -myaddr $env(A) $env(P); vwait forever
EOF
}

server() {
    exec tclsh8.6 s.tcl
}

client() {
    python3 - <<'EOF'
import socket,os
s=socket.create_connection((os.environ['A'],int(os.environ['P'])));f=s.makefile('rb')
for i in range(3000): s.sendall(b'x'*i+b'\n'); assert len(f.readline())==i+1
print('ok')
EOF
}
