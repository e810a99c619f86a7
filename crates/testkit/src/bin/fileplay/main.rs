//! Random work on files through whatever file system a folder is on, with every answer compared with what
//! files are: a model in memory. For guests that mount our shares; on any other file system it must pass
//! just so, which tests here see to.
//!
//! A program that ends with 0 found each byte and each name where it left them.

mod bytes;
mod clock;
mod mount;
mod pair;
mod records;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Random work on files, checked byte by byte, for tests")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Reads, writes, maps, cuts and syncs one file at random
    Bytes(bytes::Bytes),
    /// Makes, renames, links and removes files and folders at random
    Tree(tree::Tree),
    /// Changes files through one folder and looks at them through another that is the same
    Pair(pair::Pair),
    /// Writes records, each known to be there before the next, and says so
    Write(records::Write),
    /// Checks records that were said to be there
    Check(records::Check),
    /// Mounts, by the system call: no helper of the file system is needed
    Mount(mount::Mount),
    /// Says how far the clock of who keeps a folder is ahead, and sets ours by it
    Clock(clock::Clock),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bytes(bytes) => bytes.run(),
        Command::Tree(tree) => tree.run(),
        Command::Pair(pair) => pair.run(),
        Command::Write(write) => write.run(),
        Command::Check(check) => check.run(),
        Command::Mount(mount) => mount.run(),
        Command::Clock(clock) => clock.run(),
    };
    match done {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            println!("failed: {e:#}");
            ExitCode::FAILURE
        }
    }
}
