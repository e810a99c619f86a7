//! Load for the life-cycle tests: servers that run until they are killed, and clients that say in
//! one line how it went.

use e2e::{anew, forks, idle, load, odd, rally, stepped, turns};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |i: usize| -> u64 { words.get(i).and_then(|w| w.parse().ok()).unwrap_or_else(|| usage()) };
    let size = |i: usize| usize::try_from(number(i)).unwrap_or_else(|_| usage());
    let style = |i: usize| {
        let name = words.get(i).map_or("", String::as_str);
        load::Style::parse(name).unwrap_or_else(|| usage())
    };
    let way = |i: usize| u32::try_from(number(i)).unwrap_or_else(|_| usage());
    let port = || u16::try_from(number(1)).unwrap_or_else(|_| usage());
    let _ = e2e::calls::raise_descriptor_limit();
    e2e::calls::set_signal(libc::SIGPIPE, true);
    match words.first().map(String::as_str) {
        Some("serve") => load::serve(),
        Some("serve-many") => load::serve_many(),
        Some("serve-few") => {
            e2e::calls::limit_descriptors(number(1)).expect("a limit");
            load::serve()
        }
        Some("serve-locked") => {
            e2e::calls::rarely::lock_all_memory().expect("locked: this needs CAP_IPC_LOCK");
            load::serve()
        }
        Some("serve-anew") => anew::serve(),
        Some("anew") => anew::ask(port(), size(2), words.get(3).is_some_and(|how| how == "ends")),
        Some("odd") => odd::ask(port(), words.get(2).map_or("", String::as_str)),
        Some("ask-forked") => forks::ask(port(), words.get(2).map_or("", String::as_str)),
        Some("serve-forked") => forks::serve(words.get(1).map_or("", String::as_str)),
        Some("serve-idle") => idle::serve(),
        Some("wait-idle") => idle::wait(port(), size(2), size(3)),
        Some("talk-forked") => forks::talk(port()),
        Some("hear-forked") => forks::listen(),
        Some("turns") => turns::serve(style(1)),
        Some("in-turn") => turns::ask(port(), style(2)),
        Some("serve-rally") => {
            let port = u16::try_from(number(2)).unwrap_or_else(|_| usage());
            rally::serve(style(1), port, words.get(3).map(|_| size(3)));
        }
        Some("rally") => rally::play(port(), style(2), words.get(3).map(|_| size(3))),
        Some("rally-in-twos") => rally::play_in_twos(port()),
        Some("transfer") => {
            println!("{}", load::transfer(port(), size(2), number(3), number(4)));
            // "and stay": until it is told to go.
            if words.len() > 5 {
                let _ = std::io::stdin().read_line(&mut String::new());
            }
        }
        Some("poised") => println!("{}", load::poised(port(), size(2), number(3), number(4))),
        Some("many") => {
            println!("{}", load::many(port(), size(2), size(3)));
            // With all of them open.
            if words.get(4).is_some_and(|how| how == "killed") {
                let _ = e2e::calls::kill(e2e::calls::getpid(), libc::SIGKILL);
            }
        }
        Some("listening") => {
            let _own = load::listener();
            println!("{}", load::many(port(), size(2), size(3)));
        }
        Some("crowd") => load::crowd(number(1)),
        Some("squeezed") => println!("{}", load::squeezed(port(), size(2), size(3))),
        Some("steps") => println!("{}", load::steps(port())),
        Some("steps-anew") => println!("{}", load::steps_anew(port())),
        Some("unread") => println!("{}", load::unread(port(), size(2), size(3))),
        Some("stepped-client") => println!("{}", stepped::client(port(), way(2))),
        Some("stepped-server") => println!("{}", stepped::server(way(1))),
        Some("demoting") => println!("{}", load::demoting(port(), number(2))),
        Some("storm") => println!("{}", load::storm(port(), size(2), number(3))),
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!(
        "load-guest: serve | serve-many | serve-few DESCRIPTORS | serve-locked | transfer PORT STYLE SEED LEN | turns STYLE | in-turn PORT STYLE | \
         serve-rally STYLE PORT [CPU] | rally PORT STYLE [CPU] | rally-in-twos PORT | \
         serve-anew | anew PORT ROUNDS [ends] | odd PORT WHAT | ask-forked PORT WHAT | serve-forked WHAT | talk-forked PORT | hear-forked | serve-idle | wait-idle PORT COUNT ROUNDS | \
         poised PORT STYLE SEED LEN | many PORT COUNT ROUNDS [ended|killed] | listening PORT COUNT ROUNDS | crowd COUNT | squeezed PORT COUNT MORE | steps PORT | steps-anew PORT | unread PORT COUNT LEN | demoting PORT SEED | stepped-client PORT WAY | stepped-server WAY | storm PORT COUNT SEED"
    );
    std::process::exit(2);
}
