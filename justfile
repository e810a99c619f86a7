# What people type here. Each verb calls cargo or `cargo xtask`, nothing else.

# before every commit: seconds
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    typos
    cargo deny check bans licenses sources

# everything a contributor must pass; `just test --install` fetches what is absent
test *args:
    cargo xtask test {{args}}

# every interleaving of the lock-free parts, in small cases
loom:
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_TARGET_DIR=target/loom cargo test -p shunt-sys -p shunt-local -p shunt-frag --lib --release

# needs cargo-fuzz and a nightly compiler
fuzz target seconds="60":
    cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}

# all targets in turn, without cargo-fuzz; `just fuzz-all --minutes 600 --record`
fuzz-all *args:
    cargo xtask fuzz {{args}}

# in pairs against TCP; `just bench local --quick`
bench *args:
    cargo xtask bench {{args}}

# real and random programs with a library that aborts when a wake-up is lost
watchdog *args:
    cargo build --release --target-dir target/watchdog -p shunt-preload -p shunt-cli -p shunt-testkit --features shunt-preload/watchdog
    SHUNT_WATCHDOG=1 SHUNT_BIN_DIR={{justfile_directory()}}/target/watchdog/release cargo test -p shunt-e2e --test it -- watchdog:: programs:: differential:: oracle:: {{args}}

# the same, and hosts that meet, with threads that stop where others may come between: one in `every` such places, with a `seed`
delays every="50" seed="1" *args:
    cargo build --release --target-dir target/delays -p shunt-preload -p shunt-cli -p shunt-testkit --features shunt-preload/delays,shunt-cli/delays
    SHUNT_DELAYS={{every}}:500:{{seed}} SHUNT_BIN_DIR={{justfile_directory()}}/target/delays/release cargo test -p shunt-e2e --test it -- differential:: forks:: kills:: lifecycle:: oracle:: pairs:: programs:: reasons:: remote:: together:: trust:: {{args}}

# random programs of socket calls over TCP and over Shunt, compared, with fresh seeds
soak seconds="3600" seed=`date +%s`:
    cargo build --release -p shunt-preload -p shunt-cli -p shunt-testkit
    SHUNT_SOAK_SECONDS={{seconds}} SHUNT_SEED={{seed}} cargo test -p shunt-e2e --test it differential -- --nocapture

# either side of a connection killed, and stopped for a while, at any instruction of its life
stepped seconds="600" seed=`date +%s`:
    cargo build --release -p shunt-preload -p shunt-cli -p shunt-testkit
    SHUNT_SOAK_SECONDS={{seconds}} SHUNT_SEED={{seed}} cargo test -p shunt-e2e --test it stepped:: -- --nocapture

# CPython's socket tests, plain and under Shunt
conformance *args:
    cargo xtask conformance {{args}}

# servers and clients of Debian, plain and under Shunt; `sudo just programs --install`
programs *args:
    cargo xtask programs {{args}}

# SMC-R with real Linux kernels in emulated machines; `just interop --install`
interop *args:
    cargo xtask interop {{args}}

# the tests on an Arm CPU's Linux in an emulated machine; `just aarch64 --install`
aarch64 *args:
    cargo xtask aarch64 {{args}}

# `shunt serve` with the SMB client of a real Linux kernel in an emulated machine; `just interop-smb --install`
interop-smb *args:
    cargo xtask interop-smb {{args}}

# hostile clients against `shunt serve`, with fresh seeds
smb-abuse seconds="600" seed=`date +%s`:
    cargo build --release -p shunt-cli
    SHUNT_SOAK_SECONDS={{seconds}} SHUNT_SEED={{seed}} cargo test -p shunt-e2e --test it serve_safety::abuse -- --nocapture

# Samba's tests of SMB2 servers against `shunt serve`; `just torture --install`
torture *args:
    cargo xtask torture {{args}}

# what people install: .deb, .tar.gz
package *args:
    cargo xtask package {{args}}

# real programs side by side
demo *args:
    cargo xtask demo {{args}}

# what the machine that judges a change runs
ci:
    .ci/run
