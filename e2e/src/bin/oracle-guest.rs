//! Runs one case of the oracle: `oracle-guest CASE client|server`, or lists them with `--list`.

use e2e::cases::{CASES, processes};
use e2e::peer;
use e2e::stage::{Role, Stage};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    match texts.as_slice() {
        ["--list"] => CASES.iter().for_each(|(name, _)| println!("{name}")),
        ["--peer"] => peer::serve(),
        ["--image", ..] => std::process::exit(processes::image_main(&words[1..])),
        [name, role @ ("client" | "server")] => {
            let Some((_, case)) = CASES.iter().find(|(case, _)| case == name) else {
                eprintln!("oracle-guest: there is no case {name}; --list names them");
                std::process::exit(2);
            };
            let role = if *role == "client" { Role::Client } else { Role::Server };
            case(&mut Stage::new(role));
        }
        _ => {
            eprintln!("oracle-guest: CASE client|server, or --list");
            std::process::exit(2);
        }
    }
}
