# Ruby's sockets, a thread for each connection.
# packages: ruby
# needs: ruby

setup() {
    cat >s.rb <<EOF
require 'socket'
s = TCPServer.new('$A', ENV['P'].to_i)
loop { Thread.start(s.accept) { |c| while (l = c.gets); c.write(l.reverse); c.flush; end; c.close } }
EOF
    cat >c.rb <<EOF
require 'socket'
c = TCPSocket.new('$A', ENV['P'].to_i)
2000.times { |i| c.puts('a'*i+'b'); c.readpartial(1) == "\n" or raise; n = 0; n += c.readpartial(100000).size while n < i+1 }
puts 'ok'
EOF
}

server() {
    exec ruby s.rb
}

client() {
    ruby c.rb
}
