# SWI-Prolog's HTTP server with threads, and ab.
# packages: swi-prolog-nox apache2-utils curl
# needs: swipl ab curl

setup() {
    cat >s.pl <<'EOF'
:- use_module(library(http/thread_httpd)).
:- use_module(library(http/http_dispatch)).
:- use_module(library(http/http_client)).
:- http_handler(root(.), handle, []).
handle(Request) :-
    (memberchk(method(post), Request) -> http_read_data(Request, Data, [to(string)]), string_length(Data, N) ; N = 0),
    format('Content-type: text/plain~n~n~w~n', [N]),
    forall(between(1, 20000, I), (write(I), nl)).
main :- getenv('P', T), getenv('A', A), atom_number(T, P), http_server(http_dispatch, [port(A:P), workers(4)]), thread_get_message(_).
EOF
}

server() {
    exec swipl -q -g main s.pl
}

client() {
    for i in 1 2 3; do seq 1 $((i * 10000)) > b; curl -s -H 'Content-Type: text/plain' --data-binary @b http://$A:$P/ | sha256sum; done
    ab -q -n 200 -c 5 -k http://$A:$P/ | grep -E 'Complete|Failed|Non-2xx'
}
