//! Environments as Slurm 22.05 was seen to give them, and what they ask for.

use super::*;

const NODE: Settings = Settings { shards_per_gpu: Some(4), whole_gpus: false };

/// A job's environment with these variables, besides those that all have.
fn with<'a>(more: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    let common = [("SLURM_JOB_ID", "12"), ("SLURM_JOB_UID", "1000"), ("SLURMD_NODENAME", "node0")];
    move |name| {
        let mut all = more.iter().chain(&common);
        all.find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }
}

fn job(more: &[(&str, &str)]) -> Option<Job> {
    Request::parse(with(more)).unwrap().job(NODE).unwrap()
}

const GPU: [(&str, &str); 3] =
    [("SLURM_JOB_GPUS", "1"), ("CUDA_VISIBLE_DEVICES", "1"), ("GPU_DEVICE_ORDINAL", "1")];

#[test]
fn jobs_without_gpus_are_known() {
    for (variables, asks) in [
        (&[][..], false),
        (&[("CUDA_VISIBLE_DEVICES", "NoDevFiles")], false),
        (&[("SLURM_JOB_GRES", "license:2")], false),
        (&[("SLURM_JOB_GRES", "gres/shard:2")], true),
        (&GPU, true),
        (&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")], true),
        (&[("SLURM_SHARDS_ON_NODE", "1")], true),
    ] {
        assert_eq!(asks_for_gpus(with(variables)), asks, "{variables:?}");
    }
}

#[test]
fn whole_gpus_are_left_alone_unless_told() {
    assert_eq!(job(&GPU), None);
    let all = Settings { shards_per_gpu: None, whole_gpus: true };
    let shared = Request::parse(with(&GPU)).unwrap().job(all).unwrap().unwrap();
    assert_eq!((shared.percentage, shared.memory_bytes), (None, None));
    assert_eq!(
        (shared.name.as_str(), shared.uid, shared.gpus.to_string()),
        ("slurm-12", 1000, "1".into())
    );
}

#[test]
fn shares_are_those_that_were_asked_for() {
    let mps = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30");
    let gpu = ("SLURM_JOB_GPUS", "0");
    let two = ("SLURM_JOB_GPUS", "0,1");
    for (variables, percentage) in [
        (&[gpu, mps][..], Some(30.0)),
        (&[gpu, ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")], None),
        (&[gpu, ("SLURM_SHARDS_ON_NODE", "1")], Some(25.0)),
        (&[two, ("SLURM_SHARDS_ON_NODE", "4")], Some(50.0)),
        (&[gpu, ("SLURM_JOB_GRES", "shard:soft:3")], Some(75.0)),
        // The lower of what Slurm gives and what the options ask for.
        (&[gpu, mps, ("SPANK_OPENMPS_SM", "10")], Some(10.0)),
        (&[gpu, mps, ("SPANK_OPENMPS_SM", "50")], Some(30.0)),
        (&[gpu, ("SPANK_OPENMPS_SM", "50")], Some(50.0)),
    ] {
        let job = job(variables).unwrap();
        assert_eq!((job.percentage, job.refusal), (percentage, None), "{variables:?}");
    }
}

#[test]
fn shards_may_come_from_the_controller() {
    let mut request = Request::parse(with(&GPU)).unwrap();
    assert_eq!(request.shares, Shares::Whole);
    request.add_shards(None);
    assert_eq!(request.job(NODE), Ok(None));
    request.add_shards(Some(2));
    let job = request.job(NODE).unwrap().unwrap();
    assert_eq!((job.percentage, job.shards_per_gpu), (Some(50.0), Some(4)));
    let untold = Settings { shards_per_gpu: None, whole_gpus: false };
    assert_eq!(request.job(untold), Err(RequestError::UnknownShards(2)));
}

#[test]
fn memory_is_as_asked_and_mistakes_are_the_jobs() {
    let gpu = ("SLURM_JOB_GPUS", "0");
    let asked = job(&[gpu, ("SPANK_OPENMPS_MEMORY", "4G")]).unwrap();
    assert_eq!((asked.memory_bytes, asked.refusal), (Some(4 << 30), None));
    for (name, value) in [("SPANK_OPENMPS_MEMORY", "much"), ("SPANK_OPENMPS_SM", "200")] {
        let refusal = job(&[gpu, (name, value)]).unwrap().refusal.unwrap();
        assert!(refusal.contains(value), "{refusal}");
    }
}

#[test]
fn what_slurm_never_sets_is_an_error() {
    let parsed = |more: &[(&str, &str)]| Request::parse(with(more)).unwrap_err().to_string();
    assert!(parsed(&[]).contains("SLURM_JOB_GPUS"));
    assert!(parsed(&[("SLURM_JOB_GPUS", "GPU-12")]).contains("GPU-12"));
    let percentage = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0");
    assert!(parsed(&[("SLURM_JOB_GPUS", "0"), percentage]).contains("PERCENTAGE=0"));
    assert_eq!(Request::parse(|_| None).unwrap_err(), RequestError::Missing("SLURM_JOB_UID"),);
}

#[test]
fn steps_have_the_share_of_their_shards() {
    let job = job(&[("SLURM_JOB_GPUS", "0"), ("SLURM_SHARDS_ON_NODE", "2")]).unwrap();
    let step = |more: &[(&str, &str)]| task_percentage(&job, with(more));
    assert_eq!(step(&[("SLURM_SHARDS_ON_NODE", "1")]), Some(25.0));
    let less = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10");
    assert_eq!(step(&[("SLURM_SHARDS_ON_NODE", "1"), less]), Some(10.0));
    assert_eq!(step(&[]), None);
    // Of gres/mps Slurm itself sets the step's share.
    let mps = Job { shards_per_gpu: None, ..job };
    assert_eq!(task_percentage(&mps, with(&[("SLURM_SHARDS_ON_NODE", "1")])), None);
}

/// A user chooses the options, and in part the resources.
#[test]
fn mutated_texts_of_slurm() {
    let environments = [
        "SLURM_JOB_ID=12\nSLURM_JOB_UID=1000\nSLURM_JOB_GPUS=0-2,3\nCUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        "SLURM_JOB_ID=12\nSLURM_JOB_UID=1000\nCUDA_VISIBLE_DEVICES=1\nSLURM_SHARDS_ON_NODE=2",
        "SLURM_JOB_ID=12\nSLURM_JOB_UID=1000\nSLURM_JOB_GPUS=0\nSLURM_JOB_GRES=gres:shard:soft:3(IDX:0-1),gpu:2",
        "SLURM_JOB_ID=12\nSLURM_JOB_UID=1000\nSLURM_JOB_GPUS=0\nSPANK_OPENMPS_SM=25\nSPANK_OPENMPS_MEMORY=4G",
    ];
    crate::mutated::fuzz("slurm", &environments, |text| {
        let variable = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
        };
        asks_for_gpus(variable);
        let Ok(mut request) = Request::parse(variable) else { return };
        request.add_shards(Some(3));
        let Ok(Some(job)) = request.job(NODE) else { return };
        let fits = |percentage: f64| percentage > 0.0 && percentage <= 100.0;
        assert!(job.percentage.is_none_or(fits), "{:?}", job.percentage);
        assert!(task_percentage(&job, variable).is_none_or(fits));
    });
}
