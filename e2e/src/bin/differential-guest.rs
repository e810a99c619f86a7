//! Runs random programs of socket calls: `differential-guest FIRST-SEED COUNT`.
//!
//! Odd seeds make this process the server of the connection, even ones the client.

use std::io::Write;

use e2e::differential;
use e2e::peer;
use e2e::stage::{Role, Stage};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = words.iter().filter_map(|w| w.parse().ok()).collect();
    match (words.as_slice(), numbers.as_slice()) {
        ([word], _) if word == "--peer" => peer::serve(),
        ([_, _], [first, count]) => {
            // Both ends find the other gone by errno, not by signal.
            e2e::calls::set_signal(libc::SIGPIPE, true);
            let mut stage = Stage::new(Role::Client);
            for seed in *first..first + count {
                let role = if seed % 2 == 0 { Role::Client } else { Role::Server };
                stage.set_role(role);
                print!("{}", differential::run(&mut stage, seed));
                let _ = std::io::stdout().flush();
            }
        }
        _ => {
            eprintln!("differential-guest: FIRST-SEED COUNT");
            std::process::exit(2);
        }
    }
}
