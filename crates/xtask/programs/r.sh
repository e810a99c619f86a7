# R's server sockets, and its connections.
# packages: r-base-core
# needs: Rscript

setup() {
    cat >s.R <<'EOF'
listener <- serverSocket(as.integer(Sys.getenv("P")))
repeat {
    c <- socketAccept(listener, blocking = TRUE, open = "r+b", timeout = 60)
    repeat {
        n <- readBin(c, "integer", 1)
        if (length(n) == 0) break
        writeBin(rev(readBin(c, "double", n)), c)
    }
    close(c)
}
EOF
    cat >c.R <<'EOF'
for (k in 1:3) {
    c <- socketConnection(Sys.getenv("A"), as.integer(Sys.getenv("P")), blocking = TRUE, open = "r+b", timeout = 60)
    for (n in 1:300) {
        writeBin(as.integer(n * 10), c)
        writeBin(as.double(1:(n * 10)), c)
        stopifnot(identical(readBin(c, "double", n * 10), as.double((n * 10):1)))
    }
    close(c)
}
cat("ok\n")
EOF
}

server() {
    exec Rscript s.R
}

client() {
    Rscript c.R
}
