//! The arguments of Torque's scripts, and what a job's account asks for. Plain code.
//!
//! | | prologue | epilogue |
//! |---|---|---|
//! | 1 | job | job |
//! | 2 | user | user |
//! | 3 | group | group |
//! | 4 | job's name | job's name |
//! | 5 | requested resources | session |
//! | 6 | queue | requested resources |
//! | 7 | **account** | used resources |
//! | 8 | | queue |
//! | 9 | | **account** |
//! | 10 | | exit status |

use crate::batch::Job;
use crate::batch::gpus::{Gpus, GpusError};
use settings::{Memory, Percentage, ValueError};

/// What matters of a script's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Script {
    /// Torque's identifier of the job.
    pub(super) id: String,
    /// Name of its user.
    pub(super) user: String,
    /// `qsub -A`.
    pub(super) account: String,
}

/// Why the arguments are none of Torque's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} arguments: Torque gives its {script} {least} at least; call this with \"$@\"")]
pub(super) struct ScriptError {
    script: &'static str,
    found: usize,
    least: usize,
}

impl Script {
    /// Of a prologue.
    pub(super) fn prologue(arguments: &[String]) -> Result<Self, ScriptError> {
        Self::parse("prologue", arguments, 7)
    }

    /// Of an epilogue.
    pub(super) fn epilogue(arguments: &[String]) -> Result<Self, ScriptError> {
        Self::parse("epilogue", arguments, 9)
    }

    /// The account is the argument of this number, counted from 1.
    fn parse(
        script: &'static str,
        arguments: &[String],
        account: usize,
    ) -> Result<Self, ScriptError> {
        let wrong = ScriptError { script, found: arguments.len(), least: account };
        match (arguments, arguments.get(account - 1)) {
            ([id, user, ..], Some(account)) => {
                Ok(Script { id: id.clone(), user: user.clone(), account: account.clone() })
            }
            _ => Err(wrong),
        }
    }

    /// The job's name on the node.
    pub(super) fn name(&self) -> String {
        name_of(&self.id)
    }
}

/// The name of the job with this identifier.
pub(super) fn name_of(id: &str) -> String {
    format!("pbs-{id}")
}

/// What an account asks for: `MPS=true,sm-percent=30,memory=4G`, perhaps with other words for
/// accounting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Account {
    percentage: Option<Percentage>,
    memory: Option<Memory>,
}

impl Account {
    /// As `grep -i MPS=true` would.
    pub(super) fn asks_for_mps(account: &str) -> bool {
        account.to_ascii_lowercase().contains("mps=true")
    }

    /// Reads the shares.
    pub(super) fn parse(account: &str) -> Result<Self, ValueError> {
        let is_share =
            |key: &str| ["sm-percent", "sm"].iter().any(|name| key.eq_ignore_ascii_case(name));
        let mut read = Account { percentage: None, memory: None };
        for word in account.split([',', ';', ' ']) {
            match word.split_once('=') {
                Some((key, value)) if is_share(key) => {
                    read.percentage = Some(value.parse()?);
                }
                Some((key, value)) if key.eq_ignore_ascii_case("memory") => {
                    read.memory = Some(value.parse()?);
                }
                _ => {}
            }
        }
        Ok(read)
    }

    /// The job with these shares.
    pub(super) fn job(&self, script: &Script, uid: u32, gpus: Gpus) -> Job {
        let percentage = self.percentage.map(Percentage::percent);
        Job {
            name: script.name(),
            uid,
            gpus,
            percentage: percentage.filter(|percentage| *percentage < 100.0),
            memory_bytes: self.memory.and_then(Memory::limit_bytes),
            shards_per_gpu: None,
            refusal: None,
        }
    }
}

/// Reads `PBS_GPUFILE`, a line `HOST-gpuN` for each GPU; none, if it names none of this host.
pub(super) fn gpus_of_file(text: &str, host: &str) -> Result<Option<Gpus>, GpusError> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let here = text.lines().filter_map(|line| line.trim().rsplit_once("-gpu"));
    let here = here.filter(|(name, _)| short(name) == short(host));
    let numbers: Vec<&str> = here.map(|(_, number)| number).collect();
    match numbers.as_slice() {
        [] => Ok(None),
        numbers => numbers.join(",").parse().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split('|').map(str::to_owned).collect()
    }

    const PROLOGUE: &str = "12.head|ann|users|test|ncpus=1,walltime=60|batch|MPS=true";
    const EPILOGUE: &str = "12.head|ann|users|test|4711|ncpus=1|cput=0,mem=0kb|batch|MPS=true|271";

    #[test]
    fn arguments_are_read_by_their_positions() {
        let script = Script::prologue(&words(PROLOGUE)).unwrap();
        assert_eq!(script, Script::epilogue(&words(EPILOGUE)).unwrap());
        assert_eq!((script.user.as_str(), script.name().as_str()), ("ann", "pbs-12.head"));
        // A job without an account has an empty one.
        let without = Script::prologue(&words("12.head|ann|users|test|ncpus=1|batch|")).unwrap();
        assert!(!Account::asks_for_mps(&without.account));
        // A queue or a job of that name asks for nothing.
        let named = "12.head|ann|users|MPS=true|ncpus=1|MPS=true|physics";
        assert!(!Account::asks_for_mps(&Script::prologue(&words(named)).unwrap().account));
        let short = Script::prologue(&words("12.head|ann")).unwrap_err().to_string();
        assert!(short.contains('7') && short.contains('2'), "{short}");
    }

    #[test]
    fn accounts_ask_for_shares() {
        for (account, asks, percentage, memory) in [
            ("MPS=true", true, None, None),
            ("mps=TRUE", true, None, None),
            ("physics,MPS=true,sm-percent=30,memory=4G", true, Some(30.0), Some(4 << 30)),
            ("MPS=true;sm=100;memory=0", true, None, None),
            ("physics", false, None, None),
            ("MPS=false", false, None, None),
        ] {
            assert_eq!(Account::asks_for_mps(account), asks, "{account}");
            let script = Script { id: "1".into(), user: "ann".into(), account: account.into() };
            let job = Account::parse(account).unwrap().job(&script, 7, "0".parse().unwrap());
            assert_eq!((job.percentage, job.memory_bytes), (percentage, memory), "{account}");
        }
        assert!(Account::parse("MPS=true,sm=0").is_err());
        assert!(Account::parse("MPS=true,memory=much").is_err());
    }

    #[test]
    fn the_file_of_gpus_is_read() {
        let file = "node1-gpu1\nnode1-gpu0\nnode2.example-gpu3\nmy-host-gpu2\n";
        let on = |host: &str| gpus_of_file(file, host).map(|gpus| gpus.map(|g| g.to_string()));
        assert_eq!(on("node1.example"), Ok(Some("0,1".to_owned())));
        assert_eq!(on("node2"), Ok(Some("3".to_owned())));
        assert_eq!(on("my-host"), Ok(Some("2".to_owned())));
        assert_eq!(on("node3"), Ok(None));
        assert!(gpus_of_file("node1-gpux", "node1").is_err());
    }

    /// The account is the user's word.
    #[test]
    fn mutated_texts_of_torque() {
        let accounts = ["physics,MPS=true,sm-percent=30,memory=4G", "MPS=true;sm=12.5;memory=512M"];
        crate::mutated::fuzz("torque", &accounts, |account| {
            Account::asks_for_mps(account);
            let script = Script { id: "1".into(), user: "ann".into(), account: account.into() };
            let Ok(read) = Account::parse(account) else { return };
            let job = read.job(&script, 7, "0".parse().unwrap());
            assert!(job.percentage.is_none_or(|percentage| percentage > 0.0 && percentage < 100.0));
        });
        let files = ["node1-gpu1\nnode1-gpu0\nnode2.example-gpu3\n", "node1-gpu0-7\n"];
        crate::mutated::fuzz("gpus", &files, |text| drop(gpus_of_file(text, "node1")));
    }
}
