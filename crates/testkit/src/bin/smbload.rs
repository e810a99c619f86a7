//! Load for an SMB3 server, ours or another: see [`testkit::smbload`].

use std::process::ExitCode;

use clap::Parser;
use testkit::event::raise_descriptor_limit;
use testkit::smbload::{self, Mismatch, Op, Settings};

fn main() -> ExitCode {
    let settings = Settings::parse();
    match perform(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smbload {}: {error:#}", settings.op.name());
            ExitCode::from(if error.chain().any(<dyn std::error::Error>::is::<Mismatch>) {
                3
            } else {
                1
            })
        }
    }
}

fn perform(settings: &Settings) -> anyhow::Result<()> {
    raise_descriptor_limit()?;
    match settings.op {
        Op::Prepare => smbload::prepare(settings)?,
        Op::Ifaces => smbload::interfaces(settings)?.iter().for_each(|line| println!("{line}")),
        Op::Bare => println!("{}", smbload::bare(settings)?),
        _ => println!("{}", smbload::run(settings)?.json()),
    }
    Ok(())
}
