//! What is run there: tests by the program that holds them.

use std::time::Duration;

/// Some tests of one program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suite {
    /// As people name it.
    pub(super) name: &'static str,
    /// The package whose library's tests these are, or the end-to-end tests.
    pub(super) program: Program,
    /// Only tests whose path contains one of these; none: all.
    pub(super) paths: &'static [&'static str],
    /// When it is ended: several times what it takes.
    pub(super) limit: Duration,
}

/// Which program of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Those of a package, by its name.
    Package(&'static str),
    /// What starts whole programs.
    EndToEnd,
}

const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

const fn unit(name: &'static str, package: &'static str) -> Suite {
    let program = Program::Package(package);
    Suite { name, program, paths: &[], limit: HALF_AN_HOUR }
}

const fn end_to_end(name: &'static str, paths: &'static [&'static str]) -> Suite {
    let program = Program::EndToEnd;
    Suite { name, program, paths, limit: HALF_AN_HOUR }
}

/// All of them, in order.
pub(super) const SUITES: &[Suite] = &[
    unit("unit tests: sys", "shunt-sys"),
    unit("unit tests: local", "shunt-local"),
    unit("unit tests: preload", "shunt-preload"),
    unit("unit tests: frag", "shunt-frag"),
    unit("unit tests: smc", "shunt-smc"),
    unit("unit tests: roce", "shunt-roce"),
    unit("unit tests: smb", "shunt-smb"),
    unit("unit tests: engine", "shunt-engine"),
    unit("unit tests: cli", "shunt-cli"),
    end_to_end("programs compared with kernel TCP", &["oracle::"]),
    end_to_end("random programs", &["differential::"]),
    end_to_end(
        "two programs",
        &["pairs::", "counted::", "idle::", "naps::", "forks::", "entry_points::"],
    ),
    end_to_end(
        "lives and deaths",
        &["lifecycle::", "kills::", "hostile::", "trust::", "memory_limit::"],
    ),
    end_to_end("what is seen", &["seen::", "said::", "reasons::", "contained::"]),
    end_to_end("nginx, redis and others", &["programs::"]),
    end_to_end("several users and namespaces", &["together::"]),
    end_to_end("between hosts", &["remote::"]),
    end_to_end("files", &["serve"]),
    end_to_end("fragments", &["defrag"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        let mut names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUITES.len());
    }
}
