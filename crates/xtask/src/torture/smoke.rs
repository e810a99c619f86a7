//! A file there and back with Samba's client: the least that anybody wants of a file server.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::matrix::CASES;
use super::server::{Kind, Server};
use crate::bench::stage::{self, Running};
use crate::smbd::{PASSWORD, USERS};

/// Longer than one message takes, and no multiple of anything.
const BYTES: usize = 9_000_001;

/// Writes, lists, reads and deletes a file with smbclient; signed, and encrypted.
///
/// # Errors
///
/// When something of it fails, or the file comes back as another one.
pub(crate) fn there_and_back(kind: &Kind) -> anyhow::Result<()> {
    let server = Server::start(kind, &CASES[0])?;
    for protection in ["sign", "encrypt"] {
        round(&server, protection).with_context(|| format!("smbclient, {protection}"))?;
        println!("smbclient: there and back, {protection}");
    }
    Ok(())
}

fn round(server: &Server, protection: &str) -> anyhow::Result<()> {
    let dir = stage::new_dir(&std::env::temp_dir().join("shunt-smoke"))?;
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 % 251).to_le_bytes()[0]).collect();
    fs::write(dir.join("there"), &bytes)?;
    let mut words: Vec<OsString> = vec!["smbclient".into(), "//127.0.0.1/tmp".into()];
    words.extend(["-p".into(), server.port.to_string().into()]);
    words.push(format!("-U{}%{PASSWORD}", USERS[0]).into());
    words.push(format!("--client-protection={protection}").into());
    let commands = "mkdir folder; cd folder; put there file; ls; get file back; del file; cd ..; rmdir folder; ls";
    words.extend(["-c".into(), commands.into()]);
    let output = Running::start(&words, &dir, &[])?.finish(Duration::from_secs(60))?;
    let back = fs::read(dir.join("back")).context("the file did not come back")?;
    stage::remove_dir(&dir);
    ensure!(back == bytes, "the file came back as another one: {} bytes", back.len());
    let listed = output.lines().filter(|line| line.contains(&BYTES.to_string())).count();
    ensure!(listed == 1, "the file was listed {listed} times:\n{output}");
    ensure!(!output.contains("NT_STATUS_"), "{output}");
    Ok(())
}
