# Unicorn, which is started again by SIGUSR2 between two loads.
# packages: unicorn apache2-utils curl
# needs: unicorn ab curl

setup() {
    cat >config.ru <<'EOF'
run ->(e) { [200, {'Content-Type' => 'text/plain'}, ['x' * 100000, e['rack.input'].read.size.to_s]] }
EOF
    cat >u.rb <<EOF
listen '$A:$P'
worker_processes 3
pid '$D/pid'
logger Logger.new(File::NULL)
before_fork { |server, _| old = '$D/pid.oldbin'; Process.kill(:QUIT, File.read(old).to_i) if File.exist?(old) && server.pid != old rescue nil }
EOF
}

server() {
    unicorn -c u.rb config.ru &
    wait
    sleep 1000
}

client() {
    seq 1 50000 > b
    for k in 1 2; do
        for i in 1 2 3 4; do curl -s --data-binary @b http://$A:$P/ | sha256sum; done
        ab -q -n 500 -c 5 http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
        old=$(cat pid)
        [ $k = 1 ] && kill -USR2 $old
        for i in $(seq 1 100); do [ $k = 2 ] || [ "$(cat pid 2>/dev/null)" != $old ] && break; sleep 0.1; done
        sleep 1
    done
}
