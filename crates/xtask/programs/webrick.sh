# WEBrick, and Ruby's Net::HTTP.
# packages: ruby ruby-webrick
# needs: ruby

setup() {
    cat >s.rb <<'EOF'
require 'webrick'
server = WEBrick::HTTPServer.new(BindAddress: ENV['A'], Port: ENV['P'].to_i, AccessLog: [], Logger: WEBrick::Log.new(File::NULL))
server.mount_proc('/') { |request, response| response.body = 'x' * 100000 + request.body.to_s.reverse }
server.start
EOF
    cat >c.rb <<'EOF'
require 'net/http'
threads = 4.times.map do |t|
  Thread.new do
    Net::HTTP.start(ENV['A'], ENV['P'].to_i) do |http|
      50.times { |i| b = "#{t}" * (i * 100 + 1) + 'e'; http.post('/', b).body == 'x' * 100000 + b.reverse or raise 'wrong' }
    end
  end
end
threads.each(&:join)
puts 'ok'
EOF
}

server() {
    exec ruby s.rb
}

client() {
    ruby c.rb
}
