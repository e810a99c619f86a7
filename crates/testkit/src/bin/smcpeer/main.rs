//! The one program in a guest: its first process, which runs what the host asks for; a client and a
//! server over AF_SMC or TCP; and what tells the state of the kernel's SMC, and changes it.
//!
//! Linked statically for guests. On the host the same client and server run over TCP, plain or with
//! whatever stands in front of the C library.

mod init;
mod kernel;
mod netlink;
mod pattern;
mod serve;
mod socket;
mod visit;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(about = "Client, server and state of SMC, for tests")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves whatever clients ask for, until killed
    Serve(serve::Serve),
    /// Connects and does something; ends with 0 if all bytes were right
    Visit(visit::Visit),
    /// Prints sockets, link groups and links of the kernel's SMC
    State,
    /// Adds an enterprise id (EID)
    AddEid { eid: String },
    /// Removes all enterprise ids
    ClearEids,
    /// Names the physical network of an interface and an RDMA device
    AddPnet { id: String, interface: String, device: String },
    /// Makes an RDMA device of software on an interface
    AddRxe { device: String, interface: String },
    /// Removes an RDMA device of software
    RemoveRxe { device: String },
}

/// What sockets are like.
#[derive(Args, Clone, Copy, Debug)]
struct Kind {
    /// Plain TCP
    #[arg(long)]
    tcp: bool,
    /// SO_SNDBUF, bytes
    #[arg(long)]
    send_buffer: Option<i32>,
    /// SO_RCVBUF, bytes
    #[arg(long)]
    receive_buffer: Option<i32>,
}

/// What a connection is for. The client tells the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Purpose {
    /// The server sends back what comes, until it has seen the end
    Echo,
    /// The server checks what comes, and tells how much it was
    Sink,
    /// The server sends, and closes
    Source,
    /// Both send and check at the same time
    Both,
    /// As both, but the server sends when it has seen the end
    After,
    /// The server closes with bytes unread, which resets the connection
    Abort,
    /// The client sends a byte of urgency in the middle; the server tells what it saw
    Urgent,
}

fn main() -> ExitCode {
    if std::process::id() == 1 {
        return init::main();
    }
    let done = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Visit(visit) => visit.run(),
        Command::State => kernel::state().map(|state| print!("{state}")),
        Command::AddEid { eid } => kernel::add_eid(&eid),
        Command::ClearEids => kernel::clear_eids(),
        Command::AddPnet { id, interface, device } => kernel::add_pnet(&id, &interface, &device),
        Command::AddRxe { device, interface } => kernel::add_rxe(&device, &interface),
        Command::RemoveRxe { device } => kernel::remove_rxe(&device),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("failed: {e:#}");
            ExitCode::FAILURE
        }
    }
}
