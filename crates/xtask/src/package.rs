//! `cargo xtask package`: what people install: packages for Debian and its kin, and an archive for `/usr/local` elsewhere.

mod deb;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::install::find;
use deb::Deb;
use tree::Tree;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask package",
    about = "Builds Shunt and makes packages of it: .deb, and a .tar.gz for /usr/local"
)]
struct Cli {
    /// Where they go
    #[arg(long, value_name = "DIR", default_value = "target/package")]
    out: PathBuf,
    /// Of what was built before and lies here, in place of a build
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Leave out the library for C
    #[arg(long)]
    without_c: bool,
}

/// What is built for them: the packages of cargo.
const SHUNT: &[&str] = &["shunt-cli", "shunt-preload"];
const FOR_C: &str = "shunt-frag-c";

/// What has to be here, all of it in the Debian packages that a C compiler needs anyway.
const TOOLS: &[&str] = &["dpkg-deb", "tar", "gzip", "strip", "objdump", "md5sum"];

/// Where `dist/systemd` says that the program is.
const UNITS_EXPECT: &str = "/usr/bin/shunt";

/// Runs `cargo xtask package`.
///
/// # Errors
///
/// When it cannot be built, something of it is absent, or a tool fails.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let cli =
        Cli::parse_from(["cargo xtask package"].into_iter().chain(args.iter().map(String::as_str)));
    if let Some(tool) = TOOLS.iter().find(|tool| find(tool).is_none()) {
        bail!(
            "there is no {tool} here, which packages are made with: `apt-get install dpkg binutils`"
        );
    }
    let root = crate::workspace_root();
    let built = match cli.from {
        Some(dir) => dir,
        None => build(&root, !cli.without_c)?,
    };
    let built = built.canonicalize().with_context(|| built.display().to_string())?;
    fs::create_dir_all(&cli.out).with_context(|| cli.out.display().to_string())?;
    let press = Press { version: version(&root)?, time: time(&root), root, built, out: cli.out };
    press.shunt_deb()?;
    if !cli.without_c {
        press.c_deb()?;
    }
    press.archive(!cli.without_c)
}

fn build(root: &Path, with_c: bool) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["build", "--release"]);
    for package in SHUNT.iter().chain(with_c.then_some(&FOR_C)) {
        command.args(["-p", package]);
    }
    run(&mut command)?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(root.join(target).join("release"))
}

/// That of the workspace; between two releases with the day and the commit behind it, so that later ones are newer to
/// `apt`.
fn version(root: &Path) -> anyhow::Result<String> {
    let number = env!("CARGO_PKG_VERSION");
    let tag = format!("v{number}");
    let is_release = git(root, &["describe", "--exact-match", "--tags", "--match", &tag]);
    let commit = ["log", "-1", "--format=%cd.%h", "--date=format:%Y%m%d%H%M", "--abbrev=9"];
    match git(root, &commit) {
        Some(commit) if is_release.is_none() => {
            ensure!(deb::is_version(&commit), "git says {commit}, which is part of no version");
            Ok(format!("{number}+{commit}"))
        }
        _ => Ok(number.to_owned()),
    }
}

/// What files in packages are dated: `SOURCE_DATE_EPOCH`, or when the commit was made, seconds since 1970. The same
/// files make the same packages.
fn time(root: &Path) -> String {
    let named = env::var("SOURCE_DATE_EPOCH").ok();
    named.or_else(|| git(root, &["log", "-1", "--format=%ct"])).unwrap_or_else(|| "0".into())
}

/// What git answers; nothing where there is no repository.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    let out = command.current_dir(root).args(args).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    out.status.success().then(|| text.trim().to_owned())
}

/// Runs it, and fails with what it was.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let out = command.stderr(Stdio::inherit()).output();
    let out = out.with_context(|| format!("{:?}", command.get_program()))?;
    ensure!(out.status.success(), "{command:?} failed: {}", out.status);
    String::from_utf8(out.stdout).with_context(|| format!("{command:?}: its output"))
}

/// What makes them.
struct Press {
    version: String,
    time: String,
    root: PathBuf,
    built: PathBuf,
    out: PathBuf,
}

impl Press {
    /// Something that was built; it is there, or the error says how to have it.
    fn built(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.built.join(name);
        ensure!(
            path.is_file(),
            "{} is not there: `cargo xtask package` without --from builds all, and --without-c leaves the library for C out",
            path.display()
        );
        Ok(path)
    }

    fn shunt(&self) -> Command {
        Command::new(self.built.join("shunt"))
    }

    fn architecture(&self) -> anyhow::Result<&'static Architecture> {
        Architecture::of(env::consts::ARCH)
    }

    /// The program, its library and what goes with them, below the prefix `at`.
    fn lay_out(&self, tree: &Tree, at: &str) -> anyhow::Result<()> {
        tree.program(&self.built("shunt")?, &format!("{at}/bin/shunt"))?;
        // Where the program looks for it: ../lib/shunt.
        let library = "libshunt_preload.so";
        tree.library(&self.built(library)?, &format!("{at}/lib/shunt/{library}"))?;
        // As the loaders of Arch, of Fedora and SUSE, and of Debian write `$LIB`, for containers that have one of these or
        // another C library: `/usr/lib/shunt/$LIB/libshunt_preload.so` is there for whom it can be loaded.
        let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
        for lib in ["lib", "lib64", &multiarch] {
            let up = "../".repeat(lib.split('/').count());
            tree.link(&format!("{up}{library}"), &format!("{at}/lib/shunt/{lib}/{library}"))?;
        }
        self.completions(tree, at)?;
        self.manual(tree, at)?;
        self.units(tree, at)?;
        for file in [
            "avahi/shunt-serve.service",
            "monitoring/shunt.rules.yml",
            "monitoring/shunt-dashboard.json",
        ] {
            tree.file(&self.root.join("dist").join(file), &format!("{at}/share/shunt/{file}"))?;
        }
        let doc = format!("{at}/share/doc/shunt");
        for page in [
            "README.md",
            "SECURITY.md",
            "docs/serve.md",
            "docs/devices.md",
            "docs/containers.md",
            "docs/monitoring.md",
        ] {
            let name = Path::new(page).file_name().unwrap_or_default();
            tree.file(&self.root.join(page), &format!("{doc}/{}", name.display()))?;
        }
        self.papers(tree, at, "shunt")
    }

    fn completions(&self, tree: &Tree, at: &str) -> anyhow::Result<()> {
        let places = [
            ("bash", "bash-completion/completions/shunt"),
            ("fish", "fish/vendor_completions.d/shunt.fish"),
            (
                "zsh",
                if at == "usr" {
                    "zsh/vendor-completions/_shunt"
                } else {
                    "zsh/site-functions/_shunt"
                },
            ),
        ];
        for (shell, place) in places {
            let script = output(self.shunt().args(["completions", shell]))?;
            tree.text(&script, &format!("{at}/share/{place}"))?;
        }
        Ok(())
    }

    fn manual(&self, tree: &Tree, at: &str) -> anyhow::Result<()> {
        let pages = tree.aside("man")?;
        run(self.shunt().arg("man").arg(&pages))?;
        for page in sorted(&pages)? {
            let name = page.file_name().unwrap_or_default().display();
            tree.zipped(&page, &format!("{at}/share/man/man1/{name}.gz"))?;
        }
        Ok(())
    }

    /// Units for where the program is.
    fn units(&self, tree: &Tree, at: &str) -> anyhow::Result<()> {
        for unit in sorted(&self.root.join("dist/systemd"))? {
            let text =
                fs::read_to_string(&unit)?.replace(UNITS_EXPECT, &format!("/{at}/bin/shunt"));
            let name = unit.file_name().unwrap_or_default().display();
            tree.text(&text, &format!("{at}/lib/systemd/system/{name}"))?;
        }
        Ok(())
    }

    /// The licences: that of Apache, which Debian has once for all packages, in full where it is not.
    fn copyright(&self, at: &str) -> anyhow::Result<String> {
        let read = |name: &str| fs::read_to_string(self.root.join(name));
        let apache = match at {
            "usr" => {
                "The Apache License, Version 2.0, is in /usr/share/common-licenses/Apache-2.0.\n"
                    .to_owned()
            }
            _ => read("LICENSE-APACHE")?,
        };
        let line = "-".repeat(80);
        Ok(format!(
            "Shunt is under the MIT licence or the Apache licence (SPDX: MIT OR Apache-2.0), as you like.\n\n{}\n{line}\n\n\
             {apache}",
            read("LICENSE-MIT")?
        ))
    }

    /// What each package has of it.
    fn papers(&self, tree: &Tree, at: &str, package: &str) -> anyhow::Result<()> {
        let doc = format!("{at}/share/doc/{package}");
        tree.zipped(&self.root.join("CHANGELOG.md"), &format!("{doc}/changelog.gz"))?;
        tree.text(&self.copyright(at)?, &format!("{doc}/copyright"))
    }

    /// The library for C below the prefix `at`, in its folder `lib`.
    fn lay_out_c(&self, tree: &Tree, at: &str, lib: &str) -> anyhow::Result<()> {
        let source = self.root.join("crates/frag-c");
        for name in ["libshunt_frag.so", "libshunt_frag.a"] {
            tree.library(&self.built(name)?, &format!("{at}/{lib}/{name}"))?;
        }
        tree.file(&source.join("include/shunt_frag.h"), &format!("{at}/include/shunt_frag.h"))?;
        let config = format!(
            "prefix=/{at}\nlibdir=${{prefix}}/{lib}\nincludedir=${{prefix}}/include\n\nName: shunt_frag\n\
             Description: Reassembly of IPv4 and IPv6 fragments\nVersion: {}\nCflags: -I${{includedir}}\n\
             Libs: -L${{libdir}} -lshunt_frag\nLibs.private: -lpthread -ldl -lm\n",
            self.version
        );
        tree.text(&config, &format!("{at}/{lib}/pkgconfig/shunt_frag.pc"))?;
        let doc = format!("{at}/share/doc/libshunt-frag-dev");
        tree.file(&source.join("README.md"), &format!("{doc}/README.md"))?;
        for example in sorted(&source.join("examples"))? {
            let name = example.file_name().unwrap_or_default().display();
            tree.file(&example, &format!("{doc}/examples/{name}"))?;
        }
        self.papers(tree, at, "libshunt-frag-dev")
    }

    fn shunt_deb(&self) -> anyhow::Result<()> {
        let tree = Tree::new()?;
        self.lay_out(&tree, "usr")?;
        tree.file(&self.root.join("dist/config.toml"), "etc/shunt/config.toml")?;
        let deb = Deb {
            name: "shunt",
            section: "net",
            summary: "network data path in user space",
            description: &[
                "TCP between programs on one host goes through shared memory, and to other",
                "hosts by SMC-R over RoCEv2, without a change to the programs (shunt run,",
                "shunt engine). An SMB3 server on io_uring (shunt serve), and reassembly of",
                "IP fragments of captures and interfaces (shunt defrag).",
            ],
            // Loaded where they are asked for: tickets of Kerberos, RDMA devices.
            suggests: &["libgssapi-krb5-2", "libibverbs1"],
            scripts: &["postinst", "prerm", "postrm"],
        };
        self.deb(&deb, &tree)
    }

    fn c_deb(&self) -> anyhow::Result<()> {
        let tree = Tree::new()?;
        self.lay_out_c(&tree, "usr", &format!("lib/{}", self.architecture()?.triplet))?;
        let deb = Deb {
            name: "libshunt-frag-dev",
            section: "libdevel",
            summary: "reassembly of IP fragments, library for C",
            description: &[
                "Puts IPv4 and IPv6 fragments together within a fixed budget of memory, for",
                "programs in C: header, shared and static library, examples. The engine of",
                "shunt defrag.",
            ],
            suggests: &[],
            scripts: &[],
        };
        self.deb(&deb, &tree)
    }

    fn deb(&self, deb: &Deb<'_>, tree: &Tree) -> anyhow::Result<()> {
        let architecture = self.architecture()?.debian;
        let scripts = self.root.join("dist/debian");
        let path = self.out.join(format!("{}_{}_{architecture}.deb", deb.name, self.version));
        deb.make(tree, (&self.version, &self.time), architecture, &scripts, &path)?;
        done(&path)
    }

    /// For systems without `dpkg`: what is to be unpacked below `/usr/local`.
    fn archive(&self, with_c: bool) -> anyhow::Result<()> {
        let tree = Tree::new()?;
        let at = "usr/local";
        self.lay_out(&tree, at)?;
        tree.file(
            &self.root.join("dist/config.toml"),
            &format!("{at}/share/doc/shunt/config.toml"),
        )?;
        if with_c {
            self.lay_out_c(&tree, at, "lib")?;
        }
        let name = format!("shunt-{}-{}-linux", self.version, env::consts::ARCH);
        let path = self.out.join(format!("{name}.tar.gz"));
        let mut command = tree.tar(at, &self.time);
        command.arg("--transform").arg(format!("s,^\\.,{name},")).arg("-czf").arg(&path).arg(".");
        run(&mut command)?;
        done(&path)
    }
}

fn done(path: &Path) -> anyhow::Result<()> {
    let bytes = fs::metadata(path)?.len();
    println!("{} ({:.1} MB)", path.display(), bytes as f64 / 1e6);
    Ok(())
}

/// What is in a folder, by name.
fn sorted(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// How a processor is called.
#[derive(Debug)]
struct Architecture {
    rust: &'static str,
    debian: &'static str,
    triplet: &'static str,
}

impl Architecture {
    fn of(rust: &str) -> anyhow::Result<&'static Self> {
        const KNOWN: &[Architecture] = &[
            Architecture { rust: "x86_64", debian: "amd64", triplet: "x86_64-linux-gnu" },
            Architecture { rust: "aarch64", debian: "arm64", triplet: "aarch64-linux-gnu" },
        ];
        let known = KNOWN.iter().find(|known| known.rust == rust);
        known.with_context(|| format!("it is not known what Debian calls {rust}"))
    }
}
