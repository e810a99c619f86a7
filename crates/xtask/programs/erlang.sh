# Erlang's gen_tcp: ten clients, packets of {packet, 4}.
# packages: erlang-base
# needs: erl erlc

setup() {
    cat >s.erl <<EOF
-module(s). -export([main/0,main/1,c/0]).
main() -> main(0).
main(_) -> {ok,L}=gen_tcp:listen(list_to_integer(os:getenv("P")),[binary,{ip,element(2,inet:parse_address(os:getenv("A")))},{packet,4},{active,true},{reuseaddr,true},{backlog,100}]), loop(L).
loop(L) -> {ok,S}=gen_tcp:accept(L), P=spawn(fun() -> receive go -> echo(S) end end), gen_tcp:controlling_process(S,P), P!go, loop(L).
echo(S) -> receive {tcp,S,B} -> gen_tcp:send(S,B), echo(S); {tcp_closed,S} -> ok end.
c() -> Ps=[spawn_monitor(fun() -> {ok,S}=gen_tcp:connect(os:getenv("A"),list_to_integer(os:getenv("P")),[binary,{packet,4},{active,false}]), [begin B=binary:copy(<<I>>,I*7), ok=gen_tcp:send(S,B), {ok,B}=gen_tcp:recv(S,0) end || I <- lists:seq(1,1000)], gen_tcp:close(S) end) || _ <- lists:seq(1,10)], [receive {'DOWN',R,process,P,normal} -> ok end || {P,R} <- Ps], io:format("ok~n"), halt().
EOF
    erlc s.erl
}

server() {
    exec erl -noshell -noinput -s s main
}

client() {
    erl -noshell -noinput -s s c
}
