//! The commands, their options and their help; and what each of them calls.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::config::{self, SettingOptions};
use crate::defrag::{self, DefragArguments};
use crate::engine::{self, EngineArguments};
use crate::serve::{self, ServeArguments};
use crate::settings::{self, ConfigArguments};
use crate::share::{self, ShareArguments};
use crate::{doctor, man, run, say, stat, switch, top};

const EXIT_OK: u8 = 0;
/// Doctor's no, or a failure.
const EXIT_NO: u8 = 1;
const EXIT_USAGE: u8 = 2;

pub(crate) const EXAMPLES: &str = "\
Examples:
  shunt doctor redis-server               can it be accelerated, and if not, why?
  shunt run -- redis-server --port 6379   start the server under Shunt,
  shunt run -- redis-cli ping             and a client: they meet in shared memory
  shunt stat                              see which connections did, and why others did not
  shunt top                               the same live, in rates per second

Shunt needs both ends of a connection: start both programs with `shunt run`.
A connection to anything else is plain TCP, as before.";

pub(crate) const EXAMPLES_RUN: &str = "\
Examples:
  shunt run -- nginx -c /etc/nginx/nginx.conf
  shunt run --spin-us 0 -- ./worker               never spin: shared or busy machines
  shunt run --include port:6379,port:5432 -- ./app
  shunt run --log info -- curl http://127.0.0.1/  one line for each connection: why, or why not
  shunt run --off -- ./app                        the same without Shunt, to compare

The program replaces this one: same process id, no wrapper. What it starts inherits the settings.
A SIZE is a number of bytes or ends in K, M or G. RULES are separated by commas; a rule is port:N,
port:N-M, addr:A, addr:A/BITS, program:NAME, end:client or end:server, where the port is the listener's and the
end is this program's: the one that connects, or the one that accepts.";

pub(crate) const EXAMPLES_DOCTOR: &str = "\
Examples:
  shunt doctor                   this host: kernel, limits, shared memory, engine, devices, services
  shunt doctor nginx
  shunt doctor ./serve.py        follows the #! line
  shunt doctor --pid 4711        is it loaded there, and has it connections?
  shunt doctor --json nginx | jq .reason";

pub(crate) const EXAMPLES_STAT: &str = "\
Examples:
  shunt stat                     connections, an end a line
  shunt stat --totals            processes, pairs of processes, reasons for TCP
  shunt stat --pid 4711 --watch  one process, every 2 seconds
  shunt stat --port 6379 --mode tcp      which connections of Redis are on TCP, and why
  shunt stat --program nginx --reason 2  whose server does not run under shunt
  sudo shunt stat --dir /dev/shm/shunt-1000     those of user 1000
  shunt stat smb                 sessions, opens and latencies of `shunt serve`
  shunt stat --json | jq '.connections[] | select(.mode == \"TCP\") | .reason_words'";

pub(crate) const EXAMPLES_DEFRAG: &str = "\
Examples:
  shunt defrag in.pcap out.pcap
  shunt defrag --tunnels in.pcapng out.pcapng          fragments inside of VXLAN, GTP-U, GRE too
  tcpdump -U -w - | shunt defrag - - | tshark -r -      as they come
  shunt defrag --policy linux in.pcap seen-by-linux.pcap
  shunt defrag --json in.pcap out.pcap | jq '.dropped, .datagrams_incomplete'

  sudo shunt defrag --interface eth0                       look on: rates, and why fragments are dropped
  sudo shunt defrag --interface eth0 --write whole.pcapng --seconds 60
  sudo shunt defrag --interface eth0 --xdp --to tap0       the host gets whole datagrams on tap0,
  sudo sysctl -w net.ipv4.conf.tap0.rp_filter=0             if it does not drop them: shunt says so
  sudo shunt defrag --interface eth0 --stats 0 --metrics 9479    for Prometheus

A SIZE is a number of bytes or ends in K, M or G.";

pub(crate) const EXAMPLES_ENGINE: &str = "\
Examples:
  sudo shunt engine                              between hosts that run Shunt, for programs of root
  sudo shunt engine --users all                  the same, for programs of all users
  sudo shunt engine --eid MYEID                  and Linux, after: smcr ueid add MYEID
  sudo shunt engine --address 10.0.0.1,10.0.0.2 --max-links 2
  sudo systemctl enable --now shunt-engine@$USER    for your own programs, with three capabilities and no more
  shunt engine status                            vectors, link groups, settings
  shunt engine set autocork=0 testlink_time=5
  sudo shunt engine drain --wait && sudo systemctl start shunt-engine    an upgrade that resets nothing it carries

On each host: shunt engine, then shunt run -- PROGRAM as the same user, or as one of --users.
A SIZE is a number of bytes or ends in K, M or G.";

pub(crate) const EXAMPLES_SERVE: &str = "\
Examples:
  shunt serve --guest --listen 0.0.0.0:1445 ~/music      everybody may read and write ~/music
  sudo shunt serve user add ann                          asks for a password; in /etc/shunt/users
  sudo shunt serve --share music=/srv/music,ro --share work=/srv/work,guest=off
  sudo shunt serve --encryption required /srv/secrets    no client gets in that does not encrypt
  shunt stat smb --watch                                 who is there, what is open, how long it takes
  sudo shunt serve reload                                after changes of users or shares

  \\\\server\\music (Windows), smb://server/music (macOS), mount -t cifs //server/music /mnt (Linux)

A SIZE is a number of bytes or ends in K, M or G.";

pub(crate) const EXAMPLES_SHARE: &str = "\
Examples:
  sudo groupadd web && sudo usermod -aG web app && sudo usermod -aG web postgres
  sudo shunt share --group web                       the users of web, in /dev/shm/shunt-web
  sudo shunt share --group web --containers          and containers; says how to start them
  sudo shunt share --group 1002 /run/shunt-web
  SHUNT_DIR=/dev/shm/shunt-web shunt doctor PROGRAM    whether it may come in
  podman unshare shunt share --group 0 --containers /dev/shm/shunt-$USER    for rootless containers";

pub(crate) const EXAMPLES_CONFIG: &str = "\
Examples:
  shunt config check                         the file that is read here
  sudo shunt config check                    as root, with the files of users and keys that it names
  shunt config check new.toml && sudo install -m 644 new.toml /etc/shunt/config.toml
  shunt config show                          what is in force, and who says so
  shunt config show --json | jq '.sections[].settings[] | select(.source != \"default\")'";
pub(crate) const EXAMPLES_OFF: &str = "\
Examples:
  shunt off                       from now on new connections of your programs are TCP,
  shunt stat                      which is told here,
  shunt on                        and from now on they are not
  SHUNT_DIR=/dev/shm/shunt-web sudo -E shunt off     programs that meet in this directory
  sudo shunt off --dir /dev/shm/shunt-1000           those of user 1000
  sudo shunt off --everyone                          those of all users";

pub(crate) const EXAMPLES_ON: &str = "\
Examples:
  shunt on
  sudo shunt on --everyone        those of all users";

pub(crate) const EXAMPLES_COMPLETIONS: &str = "\
Examples:
  shunt completions bash >~/.local/share/bash-completion/completions/shunt
  shunt completions fish >~/.config/fish/completions/shunt.fish
  shunt completions zsh >~/.zfunc/_shunt     where fpath has ~/.zfunc, before compinit";

/// What follows the options of `shunt serve`.
pub(crate) fn examples_serve() -> String {
    format!("Options of a share:\n{}\n\n{EXAMPLES_SERVE}", serve::share_options())
}

/// TCP between programs on one host, through shared memory.
#[derive(Debug, Parser)]
#[command(
    name = "shunt",
    version,
    about = "TCP between programs on one host, through shared memory",
    long_about = "TCP between programs on one host, through shared memory.\n\n\
        Programs started by `shunt run` keep using TCP sockets, unchanged. Where both ends of a \
        connection run under Shunt on this host, as the same user or in a directory made by `shunt share`, their bytes go through shared \
        memory and past the kernel; everything else stays on TCP.",
    override_usage = "shunt COMMAND [OPTIONS]",
    after_help = EXAMPLES,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a program under Shunt
    #[command(
        long_about = "Start a program under Shunt.\n\n\
            Settings come from options, then the environment, then the configuration file; the file has \
            the same names with underscores, as in: spin_us = 20. A program that cannot be accelerated \
            runs all the same, on TCP, after one line on standard error (none with --log off). So does one for \
            which the file or a variable has a mistake, unless --strict is given; a wrong option is an error.\n\n\
            The exit status is the program's own; 125 if shunt failed before (a wrong option, no library), 126 if \
            the program cannot be executed, 127 if it was not found.",
        override_usage = "shunt run [OPTIONS] -- PROGRAM [ARGS]...",
        after_help = EXAMPLES_RUN
    )]
    Run(RunArguments),
    /// Find out whether a program, or any on this host, can be accelerated, and if not, why
    #[command(
        long_about = "Find out whether a program can be accelerated here, and if not, why and what to do.\n\n\
            One line for each check, with ok, warn or no; the last line is the verdict. Without a program it is about the host: \
            its kernel, limits, memory and directory, who takes part there, whether an engine runs and from where it speaks, \
            io_uring, RDMA devices and services.\n\n\
            What a program does to itself when it runs is not seen before that: a seccomp filter that it installs, \
            for one, is told by --pid only.",
        override_usage = "shunt doctor [OPTIONS]\n       shunt doctor [OPTIONS] PROGRAM\n       shunt doctor [OPTIONS] --pid PID",
        after_help = EXAMPLES_DOCTOR
    )]
    Doctor(DoctorArguments),
    /// Show connections, processes and why connections are on TCP
    #[command(
        long_about = "Show connections, processes and why connections are on TCP.\n\n\
            Each end of a connection is a line of its own. Mode is SHM (shared memory), SMCR (by SMC-R to \
            another host), or TCP with the number and words of the reason. --port, --program, --mode and --reason leave all \
            connections out that are not all of what is asked for; of --totals all processes that have none such. Connections that the library never had to do with are not \
            listed here but by ss(8). Where an engine runs, the \
            load of each of its vectors follows.\n\n\
            Bells: one-byte wake-ups sent over TCP to a peer that slept.\n\
            Sleeps: waits that slept in the kernel.\n\
            Spins: waits that looking at memory answered, without a sleep.\n\
            Stalls: times a send found its buffer full.\n\n\
            For users of smcd stats, in --totals: SMC connections are Attached, of which Client and Server; TCP \
            fallback is in the table of fallbacks, by reason; data transmitted is Tx and Rx; total requests are \
            TxReqs and RxReqs (calls that moved bytes); Buffer full is Stalls; and buffers of each size are counted \
            as in Bufs.\n\n\
            `shunt stat smb` shows what a file server (`shunt serve`) has and does.",
        override_usage = "shunt stat [OPTIONS]\n       shunt stat smb [OPTIONS]",
        after_help = EXAMPLES_STAT
    )]
    Stat(StatArguments),
    /// Show rates live in the terminal
    #[command(
        long_about = "Show rates per second live in the terminal, the busiest connection first.\n\n\
            --port, --program, --mode and --reason leave lines out as in `shunt stat`.\n\n\
            Keys: q quits, s changes what lines are sorted by, p changes between connections and \
            processes, the arrows scroll.",
        override_usage = "shunt top [OPTIONS]"
    )]
    Top(TopArguments),
    /// Put the IP fragments of a capture together
    #[command(
        long_about = "Put the IPv4 and IPv6 fragments of a capture together.\n\n\
            INPUT and OUTPUT are pcap or pcapng, of these kinds of links: Ethernet with at most four tags of \
            VLANs, Linux cooked, raw IP, loopback, PPP. \
            Packets that are no fragments pass through as they are, in their order and with their time. A \
            datagram is written with the link's header of its first fragment and the time of the fragment \
            that completed it. Fragments of different VLANs, interfaces or tunnels never meet. Memory is \
            bounded whatever the size of the capture. What was done is told on standard error.\n\n\
            A datagram that would not fit into its tunnel any more (65535 bytes) is left as its fragments \
            came, and counted.\n\n\
            With --interface fragments are put together as they come in, until Ctrl-C, --count or --seconds. \
            Whole datagrams go to --write, --to, both or neither; packets that were never fragmented do not \
            go there. The usual way (AF_PACKET, needs CAP_NET_RAW) looks on: the host sees what it saw \
            before. With --xdp (AF_XDP, needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON, Linux 5.9) a \
            program in the kernel takes fragments out of the way that are addressed to NAME, and \
            only those; everything else goes on to the host, and to what else is behind NAME, such as a bridge. \
            With --xdp --to these are fragments to an address that the host has on an interface which is up (it \
            looks once a second; 4096 addresses at most), and it gets whole datagrams in place of them, also of \
            what a rule of its firewall sends on from such an address (DNAT). What it \
            forwards by its address, what is for a group or for all, from or to an address of the link (fe80::), or for what is \
            the host's by a route alone (ip route add local) is left to it in fragments. --xdp without --to takes \
            all fragments that are addressed to NAME or to a group, and keeps them from the host and from \
            whomever it would forward them to. The program goes when shunt does, however it ends; when somebody else takes \
            it off NAME, shunt ends with an error. It looks behind \
            two tags of VLANs at most; what is further in goes on to the host. What VLAN a datagram came by is \
            not written. \
            With --xdp a worker hands fragments that belong to another over to it, so they may come by \
            any receive queue that has a worker. Cards that take VLAN tags out of frames hide from \
            --xdp what VLAN a fragment came by; ethtool -K eth0 rxvlan off ends that. \
            --memory is for all workers together. Without --xdp each worker also has a ring (--ring); with \
            it, each worker locks --memory and --ring, and half of --ring more if there are several.\n\n\
            What is written to DEVICE comes in there, for the host: rules of a firewall have to name DEVICE, and \
            IPv4 packets are dropped without a word if its reverse-path filter is strict (rp_filter is 1), or \
            loose (2) while DEVICE has no address. Of the settings of all interfaces and of its own the larger \
            one counts. shunt says so when it starts, with the command that helps, such as sysctl -w \
            net.ipv4.conf.tap0.rp_filter=0. A socket that is bound to NAME (SO_BINDTODEVICE), or to a VRF that \
            NAME belongs to and DEVICE does not, hears nothing of what comes in on DEVICE: with such ones --xdp \
            --to does not work. When DEVICE is deleted, or is down for more than a second, shunt ends with an \
            error, and the host has its fragments again. The host does not see the fragments that --xdp takes: it sends no ICMP time exceeded \
            any more for those of datagrams that stay incomplete, and neither does shunt.",
        override_usage = "shunt defrag [OPTIONS] INPUT OUTPUT\n       \
            shunt defrag [OPTIONS] --interface NAME [--write FILE] [--to DEVICE]",
        after_help = EXAMPLES_DEFRAG
    )]
    Defrag(DefragArguments),
    /// Carry connections to other hosts, by SMC-R over RoCEv2
    #[command(
        long_about = "Carry connections of programs under `shunt run` to other hosts, by SMC-R over RoCEv2.\n\n\
            The peer is a host that runs Shunt as well, or Linux with AF_SMC and RoCEv2. Both need an \
            enterprise ID in common (--eid). A connection whose peer has not announced SMC in the TCP \
            handshake, or declines, is plain TCP.\n\n\
            The engine serves programs of its own user in its network namespace, and of others if it is root and \
            --users says so. It runs until Ctrl-C or SIGTERM; connections that it carries are then reset. It needs UDP port 4791 (which rdma_rxe of the \
            kernel takes where it is loaded), and CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN for the option in \
            the TCP handshake. The unit shunt-engine@NAME of systemd gives these to the engine of that user. By setcap(8) they \
            are for a copy that one group alone may run (mode 0750), and never for the shunt that everybody runs: all users of \
            the host would have them, and `shunt run` by it loses LD_PRELOAD, LD_LIBRARY_PATH and TMPDIR (ld.so(8)). \
            Settings come from options, then the section [engine] of the configuration file, where \
            they have the same names with underscores. SIGHUP has it read them again: what `shunt engine set` can change \
            counts from then on, in place of what that has set; what else has changed is told.",
        override_usage = "shunt engine [OPTIONS]\n       shunt engine set NAME=VALUE...\n       \
            shunt engine status [--json]\n       shunt engine drain [--wait[=SECONDS]]",
        after_help = EXAMPLES_ENGINE
    )]
    Engine(EngineArguments),
    /// Serve folders to SMB clients: Windows, macOS, Linux
    #[command(
        long_about = "Serve folders to SMB clients: Windows, macOS, Linux; SMB 2.1 to 3.1.1.\n\n\
            PATH is shared under its own name; --share gives a name and options. Clients log on as a user of \
            --user or of the file of users (`shunt serve user add`), with --keytab by tickets of Kerberos too, \
            or, with --guest, as anybody. The server \
            touches files as the user who runs it, whoever logs on, or with --unix-users as the Unix user of \
            each session. Port 445, where Windows and macOS look, \
            needs root or CAP_NET_BIND_SERVICE; with another one clients need to be told: \
            mount.cifs -o port=1445, smbclient -p 1445.\n\n\
            It serves until Ctrl-C, SIGTERM or `shunt serve stop`. SIGHUP or `shunt serve reload` has it read users \
            and shares again; what is open in shares that stay as they are is not disturbed. Settings come from \
            options, then the section [serve] of the configuration file, where they have the same names with \
            underscores, and shares are tables: [serve.share.NAME] with path and the options of a share.\n\n\
            docs/serve.md says more.",
        override_usage = "shunt serve [OPTIONS] [PATH]\n       \
            shunt serve user add|passwd|delete|disable|enable NAME [--users FILE]\n       \
            shunt serve user list [--users FILE]\n       \
            shunt serve reload|stop [--port PORT]",
        after_help = examples_serve()
    )]
    Serve(Box<ServeArguments>),
    /// Make a directory in which users who trust each other, or containers, meet
    #[command(
        long_about = "Make a directory in which programs of several users, or of containers, meet in shared memory.\n\n\
            Programs of one user in one network namespace meet by themselves. Users of a group meet in a directory that \
            root has opened to it, and that each program is told of: SHUNT_DIR, or `dir` in the configuration file. With \
            --containers those of all network namespaces do. What users who share a directory can do to each other is what \
            programs of one user can: read and change what they say over Shunt (SECURITY.md).\n\n\
            A directory that is there already is used if it is root's, closed to others, and holds nothing else. What to do \
            next is told on standard output.",
        override_usage = "shunt share --group GROUP [--containers] [DIR]",
        after_help = EXAMPLES_SHARE
    )]
    Share(ShareArguments),
    /// Say what is wrong with the configuration file, or which settings are in force
    #[command(
        long_about = "Say what is wrong with the configuration file, or which settings are in force.\n\n\
            Both read the file as shunt run, shunt engine and shunt serve do: FILE, else the one that $SHUNT_CONFIG names, else \
            ~/.config/shunt/config.toml ($XDG_CONFIG_HOME stands for ~/.config), else /etc/shunt/config.toml; the first that \
            there is, and no other one.",
        override_usage = "shunt config check [--json] [FILE]\n       shunt config show [--json] [FILE]",
        after_help = EXAMPLES_CONFIG
    )]
    Config(ConfigArguments),
    /// Have new connections stay on TCP, of programs that run and of those that will, until `shunt on`
    #[command(
        long_about = "Have new connections stay on TCP, until `shunt on`. No program need be started again.\n\n\
            It is for all programs of this user under Shunt, or for those that meet in a directory (--dir), in all network \
            namespaces: those that run, and those that start later. They hear of it at their next connection. Connections that \
            are in shared memory, or go to another host by SMC-R, go on as they are until they close; `shunt stat` shows them. \
            To end those as well start the programs again.\n\n\
            A file in the directory of the board says it (switched-off), so it lasts until `shunt on`, or until what is in \
            memory goes: the host starts anew, or logind removes what a user has in /dev/shm (README, Limits). A directory of \
            `shunt share` is switched by root alone. An engine (`shunt engine`) heeds it for each user: a connection to another \
            host is then plain TCP, from the client's side without asking anybody; where a server had told its peers that it \
            speaks SMC, they are told no.\n\n\
            `shunt stat`, `shunt top` and `shunt doctor` say so while it is off, and the connections that this concerns have \
            reason 40. For one program alone there is SHUNT_ENABLED=off, or `shunt run --off`.",
        override_usage = "shunt off [--dir DIR] [--config FILE]\n       shunt off --everyone",
        after_help = EXAMPLES_OFF
    )]
    Off(SwitchArguments),
    /// Have new connections go through shared memory again, after `shunt off`
    #[command(
        long_about = "Have new connections go through shared memory again, after `shunt off`. Those that have begun on TCP \
            meanwhile stay there. Where nothing is switched off, nothing happens.",
        override_usage = "shunt on [--dir DIR] [--config FILE]\n       shunt on --everyone",
        after_help = EXAMPLES_ON
    )]
    On(SwitchArguments),
    /// Print what has a shell complete commands, options and file names
    #[command(
        long_about = "Print what has a shell complete commands, options and file names. Packages of Shunt have it in its \
            place; whoever has built it puts it there.",
        override_usage = "shunt completions SHELL",
        after_help = EXAMPLES_COMPLETIONS
    )]
    Completions {
        /// Whose
        shell: Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Directory that they are written to
        dir: PathBuf,
    },
}

#[derive(Args, Debug)]
struct RunArguments {
    #[command(flatten)]
    settings: SettingOptions,
    /// Do not start the program, and exit with 125, when the configuration file or a SHUNT_ variable has a mistake
    #[arg(long)]
    strict: bool,
    /// The program, found as the shell finds it, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM [ARGS]",
        value_hint = ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

#[derive(Args, Debug)]
struct Place {
    /// Directory of the board [also SHUNT_DIR] [/dev/shm/shunt-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Configuration file [also SHUNT_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Place {
    fn settings(self) -> SettingOptions {
        SettingOptions::with_dir(self.config, self.dir)
    }

    /// The directory of the board as settings have it; `None`: the usual one. `is_quiet`: not a word of what else is wrong
    /// with them.
    fn dir(self, is_quiet: bool) -> anyhow::Result<Option<String>> {
        let (merged, aside) = config::look_for_dir(&self.settings())?;
        if let Some(bad) = aside.filter(|_| !is_quiet) {
            say::line(format_args!("shunt: {bad}; so programs stay on TCP"));
        }
        Ok(merged.limits.dir)
    }
}

#[derive(Args, Debug)]
struct DoctorArguments {
    /// The program, by name or path; without it the host is looked at
    #[arg(value_hint = ValueHint::CommandName)]
    program: Option<OsString>,
    /// Look at a process that runs
    #[arg(long, value_name = "PID", conflicts_with = "program")]
    pid: Option<u32>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
struct StatArguments {
    /// Print a JSON object; with --watch, one a line
    #[arg(long)]
    json: bool,
    /// Print again every so many seconds, 0.1 to 86400 [2 if no number is given]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = seconds
    )]
    watch: Option<Duration>,
    /// Only connections which this process has an end of
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    #[command(flatten)]
    filter: stat::Filter,
    /// Also ends that have closed, what dead processes left behind, and listeners
    #[arg(long)]
    all: bool,
    /// Sums for each process and each pair of processes, and reasons for TCP
    #[arg(long)]
    totals: bool,
    /// Print the numbers of the board and of its engine in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch", "pid", "all", "totals"])]
    prometheus: bool,
    /// Serve them: http://ADDRESS/metrics; a port alone is on 127.0.0.1
    #[arg(
        long,
        value_name = "ADDRESS",
        value_parser = defrag::live::address,
        conflicts_with_all = ["json", "watch", "pid", "all", "totals", "prometheus"]
    )]
    metrics: Option<SocketAddr>,
    /// With --prometheus or --metrics: the boards of all users, as far as they are in /dev/shm/shunt-…; for root
    #[arg(long, conflicts_with = "dir")]
    everyone: bool,
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    of: Option<StatOf>,
}

/// Of what else there is something to show.
#[derive(Debug, Subcommand)]
enum StatOf {
    /// A file server: sessions, connections, what is open, how long requests took
    Smb(serve::stat::SmbArguments),
}

#[derive(Args, Debug)]
struct TopArguments {
    /// Time between two looks in seconds, 0.1 to 86400
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    #[command(flatten)]
    filter: stat::Filter,
    #[command(flatten)]
    place: Place,
}

#[derive(Args, Debug)]
struct SwitchArguments {
    /// All users who have a directory in /dev/shm/shunt-…, and the directories that they share; for root
    #[arg(long, conflicts_with_all = ["dir", "config"])]
    everyone: bool,
    #[command(flatten)]
    place: Place,
}

/// A pause between two looks.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s: &f64| (0.1..=86400.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, 0.1 to 86400".into())
}

/// Does what the command line says; the exit status.
pub(crate) fn main() -> u8 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let is_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
            let _ = e.print();
            return match e.exit_code() {
                0 => EXIT_OK,
                // What it would run may exit with 1 or 2 itself: as env(1), stay out of the way.
                _ if is_run => run::EXIT_OURS,
                _ => EXIT_USAGE,
            };
        }
    };
    match perform(cli.command) {
        Ok(status) => status,
        Err((status, e)) if is_closed_pipe(&e) => status,
        Err((status, e)) => {
            say::line(format_args!("shunt: {}", words_of(&e)));
            status
        }
    }
}

/// An error and what it comes of, in a line. Some have the words of their cause in theirs.
fn words_of(e: &anyhow::Error) -> String {
    e.chain().fold(String::new(), |mut said, cause| {
        let words = cause.to_string();
        if !said.contains(&words) {
            said += if said.is_empty() { "" } else { ": " };
            said += &words;
        }
        said
    })
}

/// Whether the reader of our output has gone: not worth a word.
fn is_closed_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}

fn perform(command: Command) -> Result<u8, (u8, anyhow::Error)> {
    let failed = |e| (EXIT_NO, e);
    match command {
        Command::Run(arguments) => {
            Err(run::run(&arguments.settings, arguments.strict, &arguments.command))
        }
        Command::Doctor(arguments) => doctor(arguments).map_err(failed),
        Command::Stat(arguments) => stat(arguments).map(|()| EXIT_OK).map_err(failed),
        Command::Top(arguments) => {
            let TopArguments { interval, filter, place } = arguments;
            let dir = place.dir(false).map_err(failed)?;
            top::run(dir.as_deref(), interval, filter).map(|()| EXIT_OK).map_err(failed)
        }
        Command::Defrag(arguments) => defrag::defrag(&arguments),
        Command::Engine(arguments) => engine::engine(&arguments).map(|()| EXIT_OK).map_err(failed),
        Command::Serve(arguments) => serve::serve(&arguments).map(|()| EXIT_OK).map_err(failed),
        Command::Share(arguments) => share::share(&arguments).map(|()| EXIT_OK).map_err(failed),
        Command::Config(arguments) => settings::config(&arguments).map_err(failed),
        Command::Off(arguments) => switch(arguments, true).map(|()| EXIT_OK).map_err(failed),
        Command::On(arguments) => switch(arguments, false).map(|()| EXIT_OK).map_err(failed),
        Command::Completions { shell } => completions(shell).map(|()| EXIT_OK).map_err(failed),
        Command::Man { dir } => man::write(&dir).map(|()| EXIT_OK).map_err(failed),
    }
}

fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shunt", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script)?;
    Ok(out.flush()?)
}

fn doctor(arguments: DoctorArguments) -> anyhow::Result<u8> {
    let report = match (arguments.pid, arguments.program) {
        (Some(pid), _) => doctor::examine_process(pid),
        (None, program) => {
            let place = arguments.place.settings();
            let mut sections = engine::mistakes_in_file(&place);
            sections.extend(serve::mistakes::in_file(&place));
            let settings = config::load(&place);
            match program {
                Some(program) => doctor::examine(&program, &settings, &sections),
                None => doctor::examine_host(&settings, &sections),
            }
        }
    };
    let text =
        if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.text() };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(if report.accelerated == Some(true) { EXIT_OK } else { EXIT_NO })
}

fn switch(arguments: SwitchArguments, off: bool) -> anyhow::Result<()> {
    if arguments.everyone {
        return switch::switch_all(off);
    }
    let dir = arguments.place.dir(false)?;
    switch::switch(dir.as_deref(), off)
}

fn stat(arguments: StatArguments) -> anyhow::Result<()> {
    if let Some(StatOf::Smb(smb)) = &arguments.of {
        return serve::stat::run(smb);
    }
    let StatArguments {
        json,
        watch,
        pid,
        filter,
        all,
        totals,
        prometheus,
        metrics,
        everyone,
        place,
        of: _,
    } = arguments;
    anyhow::ensure!(
        !everyone || prometheus || metrics.is_some(),
        "--everyone goes with --prometheus or --metrics"
    );
    anyhow::ensure!(
        filter.is_empty() || !(prometheus || metrics.is_some()),
        "--port, --program, --mode and --reason are not for --prometheus and --metrics, which have everything"
    );
    let view = stat::View { json, pid, filter, all, totals, watch };
    let dir = place.dir(json)?;
    let whose = if everyone {
        stat::prometheus::Whose::Everyones
    } else {
        stat::prometheus::Whose::Ours(dir.clone())
    };
    if let Some(address) = metrics {
        return stat::prometheus::serve(whose, address);
    }
    if prometheus {
        return stat::prometheus::print(&whose, &mut std::io::stdout().lock());
    }
    stat::run(&view, dir.as_deref(), &mut std::io::stdout().lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn run_arguments(arguments: &[&str]) -> Result<Vec<OsString>, clap::Error> {
        let all = ["shunt", "run"].iter().chain(arguments);
        match Cli::try_parse_from(all)?.command {
            Command::Run(run) => Ok(run.command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn arguments_of_the_program_are_its_own() {
        assert_eq!(run_arguments(&["--", "prog", "--log", "x"]).unwrap(), ["prog", "--log", "x"]);
        assert_eq!(run_arguments(&["prog", "--log", "x"]).unwrap(), ["prog", "--log", "x"]);
        assert_eq!(run_arguments(&["--log", "info", "prog", "-h"]).unwrap(), ["prog", "-h"]);
        assert_eq!(run_arguments(&["--", "prog", "--", "a"]).unwrap(), ["prog", "--", "a"]);
        assert!(run_arguments(&["--lug", "info", "prog"]).is_err(), "a typing error is no program");
        assert!(run_arguments(&[]).is_err());
    }

    #[test]
    fn all_directories_are_not_that_of_a_file() {
        for (more, is_fine) in
            [(&[][..], true), (&["--dir", "/x"], false), (&["--config", "/x"], false)]
        {
            let words = [&["shunt", "off", "--everyone"][..], more].concat();
            assert_eq!(Cli::try_parse_from(words).is_ok(), is_fine, "{more:?}");
        }
    }

    #[test]
    fn the_pause_has_bounds() {
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
