//! What OpenMPS was tested with, as docs/systems.md has it, and what to say of everything else.

use super::Finding;

/// The C libraries of Debian 11, 12 and 13.
const GLIBC: [(u32, u32); 3] = [(2, 31), (2, 36), (2, 41)];
/// What is linked against. What the loader takes is new enough; see `xtask/src/portable.rs`.
const OLDEST_GLIBC: (u32, u32) = (2, 17);
/// Linux 6, by its first number: the second one grows every two months.
const KERNEL: u32 = 6;
/// CUDA 13.0, which drivers of the branch 580 answer.
const DRIVER: (i32, i32) = (13, 0);
/// GPUs, by what their names contain.
const GPUS: [&str; 2] = ["H200", "OpenMPS Software GPU"];
/// CUDA runtimes that programs of the tests are linked with.
const RUNTIMES: [(u32, u32); 3] = [(11, 8), (12, 9), (13, 0)];

const NOT_TESTED: &str = "not tested with OpenMPS";
const ADVICE: &str =
    "it may well work: docs/systems.md says what was tested; tell the project what you find";

/// Whether something was tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tested {
    Yes,
    No,
}

impl Tested {
    fn when(condition: bool) -> Self {
        if condition { Self::Yes } else { Self::No }
    }

    /// What works, with a remark if it was not tested.
    pub(super) fn finding(self, subject: &'static str, text: impl Into<String>) -> Finding {
        match self {
            Self::Yes => Finding::ok(subject, text),
            Self::No => Finding::note(subject, format!("{}: {NOT_TESTED}", text.into()), ADVICE),
        }
    }
}

/// A kernel, by its release: `6.1.0-28-amd64`.
pub(super) fn kernel(release: &str) -> Tested {
    Tested::when(release.split('.').next().and_then(|first| first.parse().ok()) == Some(KERNEL))
}

/// A driver, by the version of CUDA that it answers.
pub(super) fn driver(major: i32, minor: i32) -> Tested {
    Tested::when((major, minor) == DRIVER)
}

/// A GPU, by its name.
pub(super) fn gpu(name: &str) -> Tested {
    Tested::when(GPUS.iter().any(|tested| name.contains(tested)))
}

/// The C library of this process, by its version; none where it is not glibc.
pub(super) fn c_library(version: Option<&str>) -> Finding {
    const SUBJECT: &str = "C library";
    let Some(version) = version else {
        return Finding::problem(
            SUBJECT,
            "this is not glibc",
            "use OpenMPS on a system, or in an image, of Debian, Ubuntu or RHEL",
        );
    };
    match numbers(version) {
        Some(numbers) if GLIBC.contains(&numbers) => {
            Finding::ok(SUBJECT, format!("glibc {version}"))
        }
        Some(numbers) if numbers >= OLDEST_GLIBC => Finding::note(
            SUBJECT,
            format!("glibc {version}: it has all symbols that OpenMPS needs, {NOT_TESTED}"),
            ADVICE,
        ),
        _ => Tested::No.finding(SUBJECT, format!("glibc {version}")),
    }
}

/// A version of the CUDA runtime, as far as it is known from a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Runtime {
    pub(super) major: u32,
    /// None where the name is the same for all minor versions.
    pub(super) minor: Option<u32>,
}

impl Runtime {
    /// Whether it was tested, and how to name it.
    pub(super) fn judge(self) -> (Tested, String) {
        let of_major = RUNTIMES.iter().filter(|(major, _)| *major == self.major);
        match self.minor {
            Some(minor) => {
                let tested = RUNTIMES.contains(&(self.major, minor));
                (Tested::when(tested), format!("CUDA runtime {}.{minor}", self.major))
            }
            None => {
                let tested: Vec<String> =
                    of_major.map(|(major, minor)| format!("{major}.{minor}")).collect();
                let which = match tested.as_slice() {
                    [] => String::new(),
                    tested => format!(" (tested: {})", tested.join(", ")),
                };
                let tested = Tested::when(!tested.is_empty());
                (tested, format!("CUDA runtime {}.x{which}", self.major))
            }
        }
    }
}

/// The first two numbers of a version: 2 and 36 of `2.36`, 12 and 4 of `12.4.127`.
pub(super) fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_was_not_tested_says_so() {
        for (release, tested) in [
            ("6.1.0-28-amd64", Tested::Yes),
            ("6.18.44", Tested::Yes),
            ("5.14.0-503.el9.x86_64", Tested::No),
            ("60.1", Tested::No),
            ("7.0-rc1", Tested::No),
            ("odd", Tested::No),
        ] {
            assert_eq!(kernel(release), tested, "{release}");
        }
        for (version, verdict, words) in [
            (Some("2.36"), Verdict::Ok, "glibc 2.36"),
            (Some("2.28"), Verdict::Note, "all symbols that OpenMPS needs, not tested"),
            (Some("2.99"), Verdict::Note, "not tested"),
            (Some("2.12"), Verdict::Note, "2.12: not tested"),
            (None, Verdict::Problem, "not glibc"),
        ] {
            let finding = c_library(version);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.text.contains(words), "{finding:?}");
        }
        assert_eq!((driver(13, 0), driver(12, 9), driver(13, 1)), {
            (Tested::Yes, Tested::No, Tested::No)
        });
        assert_eq!(gpu("NVIDIA H200"), Tested::Yes);
        assert_eq!(gpu("NVIDIA GeForce RTX 4090"), Tested::No);
        let runtime = |major, minor| Runtime { major, minor }.judge();
        assert_eq!(runtime(12, Some(9)), (Tested::Yes, "CUDA runtime 12.9".into()));
        assert_eq!(runtime(12, Some(4)), (Tested::No, "CUDA runtime 12.4".into()));
        assert_eq!(runtime(12, None), (Tested::Yes, "CUDA runtime 12.x (tested: 12.9)".into()));
        assert_eq!(runtime(10, None), (Tested::No, "CUDA runtime 10.x".into()));
    }

    /// The page for people has the same versions.
    #[test]
    fn the_page_of_systems_says_the_same() {
        let page = include_str!("../../../../docs/systems.md");
        let row = |start: &str| {
            let line = page.lines().find(|line| line.starts_with(start));
            line.unwrap_or_else(|| panic!("no {start} in docs/systems.md")).to_owned()
        };
        let tested = |start: &str| {
            let row = row(start);
            assert!(row.contains("| tested"), "{row}");
            row
        };
        let libraries = tested("| glibc 2.36") + &tested("| glibc 2.31");
        for (major, minor) in GLIBC {
            assert!(libraries.contains(&format!("{major}.{minor}")), "{libraries}");
        }
        tested(&format!("| {KERNEL}.x"));
        tested(&format!("| driver of CUDA {}.{} (580", DRIVER.0, DRIVER.1));
        tested("| NVIDIA H200");
        let runtimes = tested("| 11.8 shared");
        for (major, minor) in RUNTIMES {
            assert!(runtimes.contains(&format!("{major}.{minor}")), "{runtimes}");
        }
    }
}
