# LuaSocket.
# packages: lua5.4 lua-socket
# needs: lua5.4

setup() {
    cat >s.lua <<EOF
local s=require'socket'; local l=assert(s.bind('$A',os.getenv('P')))
while true do local c=l:accept(); while true do local m=c:receive('*l'); if not m then break end; c:send(m..'\n') end; c:close() end
EOF
    cat >c.lua <<EOF
local s=require'socket'; local c=s.connect('$A',tonumber(os.getenv('P')))
for i=1,3000 do c:send(('x'):rep(i)..'\n'); assert(#c:receive('*l')==i) end; print('ok')
EOF
}

server() {
    exec lua5.4 s.lua
}

client() {
    lua5.4 c.lua
}
