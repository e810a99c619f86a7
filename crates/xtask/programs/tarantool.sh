# Tarantool: rows over its binary protocol.
# packages: tarantool
# needs: tarantool

setup() {
    mkdir t
    cat >s.lua <<EOF
box.cfg { listen = '$A:$P', work_dir = '$D/t', log = '$D/log' }
box.schema.user.grant('guest', 'read,write,execute,create', 'universe', nil, { if_not_exists = true })
local s = box.schema.space.create('s', { if_not_exists = true })
s:create_index('i', { if_not_exists = true })
EOF
    cat >c.lua <<EOF
local c = require('net.box').connect('$A:$P')
for n = 1, 1000 do c.space.s:replace { n, ('x'):rep(n * 10) } end
local fiber, total, done = require 'fiber', 0, 0
for k = 1, 10 do fiber.create(function()
  for n = 1, 1000 do total = total + #c.space.s:get(n)[2] end
  done = done + 1
end) end
while done < 10 do fiber.sleep(0.01) end
print(total, #c.space.s:select({}, { limit = 1000 }))
os.exit(0)
EOF
}

server() {
    exec tarantool s.lua
}

client() {
    tarantool c.lua
}
