//! Slurm's controller, through `scontrol`: what the prolog's environment does not say, and nodes
//! that must not get further jobs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::tres;
use crate::batch::bounded;

/// A controller that is busy answers within seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// Where it is, if PATH, which slurmd may not set, does not say.
const USUAL_PLACES: [&str; 4] = [
    "/usr/bin/scontrol",
    "/usr/local/bin/scontrol",
    "/opt/slurm/bin/scontrol",
    "/opt/slurm/current/bin/scontrol",
];
/// Longer reasons are of no use to anybody.
const MAX_REASON_CHARACTERS: usize = 240;

/// Slurm's controller, as this node sees it.
#[derive(Debug)]
pub(super) struct Controller {
    scontrol: PathBuf,
    node: Option<String>,
}

/// Why it could not be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControllerError {
    /// It cannot be run, or fails.
    #[error("{} says nothing of job {job}: {why}; --scontrol names another", scontrol.display())]
    Job {
        /// The program.
        scontrol: PathBuf,
        /// The job.
        job: String,
        /// What happened.
        why: String,
    },
}

/// Whether the node is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    Yes,
    No,
}

impl Controller {
    /// Through this `scontrol`, or the one that is found; `node` is this node's name.
    pub(super) fn new(scontrol: Option<PathBuf>, node: Option<String>) -> Self {
        Controller { scontrol: scontrol.unwrap_or_else(find), node }
    }

    /// How many shards a job has on this node.
    pub(super) fn shards_of_job(&self, job: &str) -> Result<Option<u32>, ControllerError> {
        let failed = |why| ControllerError::Job {
            scontrol: self.scontrol.clone(),
            job: job.to_owned(),
            why,
        };
        let mut command = Command::new(&self.scontrol);
        command.args(["--details", "--oneliner", "show", "job", job]);
        let said = bounded::run(&mut command, LIMIT)
            .map_err(|error| error.to_string())
            .and_then(bounded::Ended::success)
            .map_err(failed)?;
        Ok(shards(&said, self.node.as_deref().unwrap_or_default()))
    }

    /// Takes the node out of service. One that is out of service keeps its reason, as Slurm itself
    /// does: the first is the cause (an epilog also follows a prolog that failed), or an
    /// administrator's.
    pub(super) fn drain(&self, reason: &str) -> Drained {
        let Some(node) = &self.node else {
            eprintln!("openmps: the node is not drained: SLURMD_NODENAME is not set");
            return Drained::No;
        };
        if self.is_drained(node) {
            eprintln!("openmps: {node} is drained already, and keeps its reason");
            return Drained::Yes;
        }
        let mut command = Command::new(&self.scontrol);
        command
            .args(["update", &format!("NodeName={node}"), "State=DRAIN"])
            .arg(format!("Reason={}", one_line(reason)));
        let drained = bounded::run(&mut command, LIMIT)
            .map_err(|error| error.to_string())
            .and_then(bounded::Ended::success);
        match drained {
            Ok(_) => Drained::Yes,
            Err(why) => {
                eprintln!("openmps: {} cannot drain {node}: {why}", self.scontrol.display());
                Drained::No
            }
        }
    }

    /// Whether the controller says so; without an answer, no.
    fn is_drained(&self, node: &str) -> bool {
        let mut command = Command::new(&self.scontrol);
        command.args(["--oneliner", "show", "node", node]);
        let said = bounded::run(&mut command, LIMIT)
            .map_err(|error| error.to_string())
            .and_then(bounded::Ended::success);
        said.is_ok_and(|said| has_drain(&said))
    }
}

/// Reads `scontrol show node`: `State=IDLE+DRAIN`, `State=MIXED+DRAIN+CLOUD`.
fn has_drain(said: &str) -> bool {
    let state = said.split_whitespace().find_map(|word| word.strip_prefix("State="));
    state.is_some_and(|state| state.split('+').any(|part| part == "DRAIN"))
}

fn one_line(reason: &str) -> String {
    let words: Vec<&str> = reason.split_whitespace().collect();
    words.join(" ").chars().take(MAX_REASON_CHARACTERS).collect()
}

/// Reads the shards of a job on a node out of `scontrol show job --details`:
/// `Nodes=node[1-2] CPU_IDs=0 Mem=0 GRES=shard:3(IDX:0)`.
fn shards(said: &str, node: &str) -> Option<u32> {
    let mut is_here = false;
    for word in said.split_whitespace() {
        match word.split_once('=') {
            Some(("Nodes", hosts)) => is_here = tres::has_host(hosts, node),
            Some(("GRES", list)) if is_here => return tres::count(list, "shard"),
            _ => {}
        }
    }
    None
}

fn find() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join("scontrol"));
    in_path
        .chain(USUAL_PLACES.iter().map(PathBuf::from))
        .find(|candidate| candidate.is_absolute() && candidate.exists())
        .unwrap_or_else(|| Path::new(USUAL_PLACES[0]).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DETAILS: &str = "JobId=6 JobName=sh NodeList=node[1-3] NumNodes=3 TRES=cpu=3 JOB_GRES=shard:7 \
        Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:3(IDX:0) Nodes=node[2-3] CPU_IDs=0 Mem=0 GRES=shard:soft:2(2/4) \
        MinCPUsNode=1 TresPerNode=gres:shard:3";

    #[test]
    fn a_drained_node_is_known_by_its_state() {
        assert!(has_drain(
            "NodeName=node0 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1 Reason=DRAIN"
        ));
        assert!(has_drain("NodeName=node0 State=MIXED+CLOUD+DRAIN+NOT_RESPONDING"));
        assert!(!has_drain("NodeName=node0 State=IDLE ThreadsPerCore=1 Reason=State=DRAIN"));
        assert!(!has_drain("slurm_load_node error: Unable to contact slurm controller"));
    }

    #[test]
    fn shards_are_read_of_this_node() {
        assert_eq!(shards(DETAILS, "node1"), Some(3));
        assert_eq!(shards(DETAILS, "node3"), Some(2));
        assert_eq!(shards(DETAILS, "node4"), None);
        let whole = "JobId=7 Nodes=node0 CPU_IDs=0 Mem=0 GRES=gpu:soft:1(IDX:0) MinCPUsNode=1";
        assert_eq!(shards(whole, "node0"), None);
        assert_eq!(shards("", "node0"), None);
    }

    #[test]
    fn reasons_are_short_and_on_one_line() {
        assert_eq!(one_line("a\n  b\tc"), "a b c");
        assert_eq!(one_line(&"word ".repeat(100)).chars().count(), MAX_REASON_CHARACTERS);
    }
}
