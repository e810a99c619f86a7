//! What is tried: how the kernel mounts the share, and what is done there.

/// A mount, and work on it.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Mount options, beside who we are and where the server is.
    pub(super) options: &'static str,
    /// Options of the share, with a comma before each.
    pub(super) share: &'static str,
    pub(super) work: Work,
    /// Whether `--quick` has it.
    pub(super) quick: bool,
    /// A multiple of what it takes beside other work: only what hangs reaches it.
    pub(super) limit_s: u64,
}

/// What is done. Scripts run in the guest's shell; the share is at `/m`, `$SEED` is a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A script, which must succeed.
    Script(&'static str),
    /// A script with the share mounted twice, by connections of their own: the second time at `/n`.
    Twice(&'static str),
    /// A script of a guest, then one of the host's shell in the shared folder.
    Then(&'static str, &'static str),
    /// Records are written while the server is taken away and comes back.
    Lose(Loss),
}

/// What happens to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// It is told to end, and started again.
    Stop,
    /// It is killed, and started again.
    Kill,
    /// The cable is pulled for some seconds: the connection stays, both ends resend.
    Cable,
    /// The server's end of each connection is destroyed; the server stays.
    Cut,
    /// Likewise of one connection of four, then of the next, until each was cut once.
    Channels,
}

/// Random bytes, read again by a mount that cannot have kept any of them.
const BYTES: &str = "fileplay bytes /m/bytes --seed $SEED --operations 300 --model /tmp/model && remount && \
                     cmp /m/bytes /tmp/model && rm /m/bytes";
const TREE: &str = "fileplay tree /m/tree --seed $SEED --operations 300 && rmdir /m/tree";
const BOTH: &str = "fileplay bytes /m/bytes --seed $SEED --operations 200 --model /tmp/model && remount && \
                    cmp /m/bytes /tmp/model && fileplay tree /m/tree --seed $SEED --operations 150";
/// The client has opened three channels beside the first.
macro_rules! by_four {
    ($($script:tt)+) => {
        concat!(
            "{ grep -q 'Extra Channels: 3' /proc/fs/cifs/DebugData || \
             { grep -i chan /proc/fs/cifs/DebugData; exit 1; }; } && ",
            $($script)+
        )
    };
}
const BOTH_BY_FOUR: &str = by_four!(
    "fileplay bytes /m/bytes --seed $SEED --operations 200 --model /tmp/model && remount && \
     cmp /m/bytes /tmp/model && fileplay tree /m/tree --seed $SEED --operations 150"
);
const LARGE_BY_FOUR: &str = by_four!(
    "dd if=/dev/urandom of=/tmp/large bs=1M count=24 2>/dev/null && cp /tmp/large /m/large && \
     remount && cmp /tmp/large /m/large && rm /tmp/large /m/large"
);
/// No smaller than any message of ours.
const LARGE: &str = "dd if=/dev/urandom of=/tmp/large bs=1M count=24 2>/dev/null && cp /tmp/large /m/large && \
                     remount && cmp /tmp/large /m/large && mv /m/large /m/moved && cmp /tmp/large /m/moved && \
                     rm /tmp/large /m/moved";
const SMALL: &str = "mkdir /m/small && cd /m/small && i=0; while [ $i -lt 400 ]; do echo $i >f$i || exit 1; \
                     i=$((i+1)); done; cd / && remount && [ $(ls /m/small | wc -l) = 400 ] && \
                     [ \"$(cat /m/small/f399)\" = 399 ] && [ $(cat /m/small/* | wc -l) = 400 ] && rm -r /m/small";
const GIT: &str = "export HOME=/tmp; git config --global user.name a; git config --global user.email a@b; \
                   git config --global safe.directory '*'; cd /m && git init -q repository && cd repository && \
                   mkdir -p a/b && for i in 1 2 3 4 5 6 7 8 9; do echo $i >a/f$i; cp /bin/busybox a/b/x$i; \
                   git add -A && git commit -q -m $i || exit 1; done; git fsck --full --strict && \
                   git clone -q /m/repository /m/clone && cd /m/clone && git fsck --full && \
                   git checkout -q -b branch HEAD~3 && git merge -q master && git gc -q && \
                   [ -z \"$(git status --porcelain)\" ] && [ $(git log --oneline | wc -l) = 9 ]";
const GIT_HOST: &str = "for r in repository clone; do cd $FOLDER/$r && git -c safe.directory='*' fsck --full \
                        --strict && [ -z \"$(git -c safe.directory='*' status --porcelain)\" ] || exit 1; done";
const BUILD: &str = include_str!("build.sh");
const BUILD_BY_FOUR: &str = by_four!(include_str!("build.sh"));
/// What is left is what git has, as old as the client said.
const BUILD_HOST: &str = "cd $FOLDER/project && git -c safe.directory='*' fsck --full --strict && \
                          [ -z \"$(git -c safe.directory='*' status --porcelain)\" ] && \
                          [ $(git -c safe.directory='*' log --oneline | wc -l) = 2 ] && [ ! -e out ] && \
                          find . -name .git -prune -o -type f -exec stat -c '%Y %s %n' {} + | \
                          LC_ALL=C sort | diff - ../times >&2";
const COPY: &str = "mkdir /m/copy && tar -cf /tmp/t.tar -C / modules bin/busybox lib && tar -xf /tmp/t.tar -C /m/copy && \
                    remount && diff -r /modules /m/copy/modules && diff -r /lib /m/copy/lib && cmp /bin/busybox /m/copy/bin/busybox && \
                    rm -r /m/copy /tmp/t.tar";
const FACTS: &str = "echo hello >/m/f && touch -d '2020-02-03 04:05:06' /m/f && remount && \
                     [ \"$(date -r /m/f +%s)\" = \"$(date -d '2020-02-03 04:05:06' +%s)\" ] && \
                     [ $(stat -c %s /m/f) = 6 ] && df /m >/dev/null && \
                     [ $(stat -f -c %b /m) -gt 0 ] && truncate -s 5000000000 /m/f && \
                     [ $(stat -c %s /m/f) = 5000000000 ] && rm /m/f && \
                     ! cat /m/nothing 2>/tmp/e && grep -q 'No such file' /tmp/e && \
                     mkdir /m/d && touch /m/d/x && ! rmdir /m/d 2>/tmp/e && grep -q 'not empty' /tmp/e && rm -r /m/d";
const WATCH: &str = "mkdir -p /m/full && cd /m/full && i=0; while [ $i -lt 1200 ]; do \
                     : >\"a file with a name of some length $i\" || exit 1; i=$((i+1)); done; cd /; remount; \
                     [ $(ls /m/full | wc -l) = 1200 ] && [ $(ls /m/full | sort -u | wc -l) = 1200 ] && rm -r /m/full";

/// Links and pipes as reparse points, as this mount makes them, and what they are on the server.
const LINKS: &str = "cd /m && echo hello >file && mkdir d && ln -s file link && ln -s nowhere/at/all lost && \
                     ln -s ../file d/up && ln -s d folder && mkfifo pipe && cd / && remount && \
                     [ \"$(readlink /m/link)\" = file ] && [ \"$(cat /m/link)\" = hello ] && \
                     [ \"$(readlink /m/lost)\" = nowhere/at/all ] && ! cat /m/lost 2>/dev/null && \
                     [ \"$(cat /m/folder/up)\" = hello ] && [ -p /m/pipe ] && \
                     [ $(find /m -type l | wc -l) = 4 ] && mv /m/link /m/moved && [ \"$(cat /m/moved)\" = hello ] && \
                     rm /m/moved /m/folder && [ \"$(cat /m/d/up)\" = hello ]";
const LINKS_HOST: &str = "cd $FOLDER && [ \"$(readlink lost)\" = nowhere/at/all ] && [ \"$(readlink d/up)\" = ../file ] && \
                          [ -p pipe ] && [ ! -L link ] && [ ! -L moved ] && [ -f file ] && [ -d d ]";

const fn script(name: &'static str, options: &'static str, script: &'static str) -> Case {
    Case { name, options, share: "", work: Work::Script(script), quick: false, limit_s: 300 }
}

const fn quick(case: Case) -> Case {
    Case { quick: true, ..case }
}

const fn of(name: &'static str, options: &'static str, work: Work) -> Case {
    Case { name, options, share: "", work, quick: false, limit_s: 400 }
}

/// A repository, built on the share; then the host looks at it.
const fn building(name: &'static str, options: &'static str, script: &'static str) -> Case {
    of(name, options, Work::Then(script, BUILD_HOST))
}

/// In a share whose links are the client's to follow.
const fn links(name: &'static str, options: &'static str) -> Case {
    Case { share: ",links=client", ..of(name, options, Work::Then(LINKS, LINKS_HOST)) }
}

pub(super) const CASES: &[Case] = &[
    quick(script("3.1.1: bytes", "vers=3.1.1", BYTES)),
    quick(script("3.1.1: tree", "vers=3.1.1", TREE)),
    quick(script("3.1.1: facts", "vers=3.1.1", FACTS)),
    script("3.1.1: large file", "vers=3.1.1", LARGE),
    script("3.1.1: many small files", "vers=3.1.1", SMALL),
    script("3.1.1: a full folder", "vers=3.1.1", WATCH),
    script("3.1.1: tar and diff", "vers=3.1.1", COPY),
    quick(of("3.1.1: git, and git fsck on the server", "vers=3.1.1", Work::Then(GIT, GIT_HOST))),
    quick(building("3.1.1: a build", "vers=3.1.1", BUILD)),
    quick(of("3.1.1: two mounts", "vers=3.1.1", Work::Twice("fileplay pair /m /n --seed $SEED"))),
    script("2.1: both", "vers=2.1", BOTH),
    script("2.1: both, signed", "vers=2.1,sign", BOTH),
    of("2.1: two mounts", "vers=2.1", Work::Twice("fileplay pair /m /n --seed $SEED")),
    script("3.0: both", "vers=3.0", BOTH),
    script("3.0: both, signed", "vers=3.0,sign", BOTH),
    script("3.0: both, sealed", "vers=3.0,seal", BOTH),
    script("3.0.2: both", "vers=3.02", BOTH),
    script("3.1.1: both, signed", "vers=3.1.1,sign", BOTH),
    quick(script("3.1.1: both, sealed", "vers=3.1.1,seal", BOTH)),
    script("3.1.1: large file, sealed", "vers=3.1.1,seal", LARGE),
    script("3.1.1: both, four channels", "vers=3.1.1,multichannel,max_channels=4", BOTH_BY_FOUR),
    script(
        "3.1.1: large file, four channels",
        "vers=3.1.1,multichannel,max_channels=4",
        LARGE_BY_FOUR,
    ),
    building(
        "3.1.1: a build, four channels",
        "vers=3.1.1,multichannel,max_channels=4",
        BUILD_BY_FOUR,
    ),
    script(
        "3.1.1: both, four channels, sealed",
        "vers=3.1.1,seal,multichannel,max_channels=4",
        BOTH_BY_FOUR,
    ),
    script("3.1.1: both, nothing cached", "vers=3.1.1,cache=none", BOTH),
    script("3.1.1: both, cached loosely", "vers=3.1.1,cache=loose", BOTH),
    script("3.1.1: both, small messages", "vers=3.1.1,rsize=16384,wsize=16384", BOTH),
    // Without leases Linux 6.12 reads past the end that the server knows, and not what it has yet to write.
    script("3.1.1: tree, no leases", "vers=3.1.1,nolease", TREE),
    script("3.1.1: both, resilient handles", "vers=3.1.1,resilienthandles", BOTH),
    script(
        "3.1.1: symbolic links of Minshall and French",
        "vers=3.1.1,mfsymlinks",
        "fileplay tree /m/tree --seed $SEED --operations 200 --symbolic-links --hard-links",
    ),
    script(
        "3.1.1: hard links",
        "vers=3.1.1",
        "fileplay tree /m/tree --seed $SEED --operations 200 --hard-links",
    ),
    of(
        "3.1.1: POSIX extensions",
        "vers=3.1.1,posix",
        Work::Then(
            "grep -q ' /m cifs .*posix' /proc/mounts && cd /m && (umask 037; : >f) && (umask 026; mkdir d) && \
             cd / && remount && [ $(stat -c %a /m/f) = 640 ] && [ $(stat -c %a /m/d) = 751 ] && cd /m && \
             chmod 604 f && chmod 2750 d && echo lower >a && echo upper >A && \
             echo one >case && mv case CASE && ! [ -e case ] && echo two >other && mv other case && \
             echo three >over && echo gone >OVER && mv over OVER && ! [ -e over ] && \
             echo colon >x:y && stat -c %i f d x:y >inodes && cd / && remount && cd /m && \
             [ $(stat -c %a f) = 604 ] && [ $(stat -c %a d) = 2750 ] && [ $(cat a) = lower ] && [ $(cat A) = upper ] && \
             [ $(cat CASE) = one ] && [ $(cat case) = two ] && [ $(cat OVER) = three ] && [ $(cat x:y) = colon ] && \
             [ $(ls | wc -l) = 9 ]",
            "cd $FOLDER && [ $(stat -c %a f) = 604 ] && [ $(stat -c %a d) = 2750 ] && [ $(cat a) = lower ] && \
             [ $(cat A) = upper ] && [ $(cat CASE) = one ] && [ $(cat case) = two ] && [ $(cat OVER) = three ] && \
             ! [ -e over ] && [ $(cat x:y) = colon ] && [ $(ls | wc -l) = 9 ] && stat -c %i f d x:y | cmp - inodes",
        ),
    ),
    links("3.1.1: symbolic links of Windows, and pipes", "vers=3.1.1"),
    links("3.1.1: symbolic links and pipes of NFS", "vers=3.1.1,reparse=nfs"),
    links("3.1.1: symbolic links and pipes of WSL", "vers=3.1.1,reparse=wsl"),
    of(
        "3.1.1: two mounts, sealed",
        "vers=3.1.1,seal",
        Work::Twice("fileplay pair /m /n --seed $SEED"),
    ),
    quick(of("3.1.1: the server is killed", "vers=3.1.1", Work::Lose(Loss::Kill))),
    of("3.1.1: the server is started again", "vers=3.1.1", Work::Lose(Loss::Stop)),
    of("3.1.1: the connection is cut", "vers=3.1.1", Work::Lose(Loss::Cut)),
    of("3.1.1: the cable is pulled", "vers=3.1.1", Work::Lose(Loss::Cable)),
    of(
        "3.1.1: one channel of four is cut, and then the next",
        "vers=3.1.1,multichannel,max_channels=4",
        Work::Lose(Loss::Channels),
    ),
    of(
        "3.1.1: one channel of four is cut, and then the next, sealed",
        "vers=3.1.1,seal,multichannel,max_channels=4",
        Work::Lose(Loss::Channels),
    ),
    of("2.1: the server is killed", "vers=2.1", Work::Lose(Loss::Kill)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_a_name_of_its_own() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
