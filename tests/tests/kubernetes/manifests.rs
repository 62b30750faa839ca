//! The manifests that people apply: by Kubernetes' own published schemas (`manifests.py`), and the
//! offer in them by the plugin's reader.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use openmps_tests::process;
use openmps_tests::wait::PATIENCE;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The validator's verdict on a directory like `deploy/kubernetes`; nothing where there is no
/// validator.
fn verdict(directory: &Path) -> Result<Option<(bool, String)>> {
    let python = repository().join("target/kubernetes-schemas/venv/bin/python3");
    if !python.exists() {
        println!("skipped: there is no {}: `cargo xtask programs` makes it", python.display());
        return Ok(None);
    }
    let script = repository().join("tests/tests/kubernetes/manifests.py");
    let finished =
        process::run(Command::new(python).arg("-B").arg(script).arg(directory), PATIENCE)?;
    let said = format!("{}{}", finished.stdout, finished.stderr);
    Ok(Some((finished.status.success(), said)))
}

#[test]
fn manifests_are_what_kubernetes_takes() -> Result<()> {
    let manifests = repository().join("deploy/kubernetes");
    let Some((is_right, said)) = verdict(&manifests)? else { return Ok(()) };
    ensure!(is_right, "{said}");
    let checked = said.trim().rsplit(' ').next().and_then(|word| word.parse::<u32>().ok());
    // Namespace and DaemonSet, plain and for the software GPU, and a job, of twelve releases.
    ensure!(checked.is_some_and(|checked| checked >= 60), "{said}");
    // And it would say so if they were not: a field's name with a slip of the pen, a right that
    // nobody needs.
    for (right, wrong, named) in [
        ("hostPID:", "hostPid:", "hostPid"),
        ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "device-plugin"),
        ("{drop: [ALL]}", "{drop: [ALL], add: [SYS_ADMIN]}", "device-plugin"),
    ] {
        let copy = tempfile::tempdir()?;
        for name in ["base", "overlays/softcuda", "examples"] {
            let to = copy.path().join(name);
            fs::create_dir_all(&to)?;
            for entry in fs::read_dir(manifests.join(name))? {
                let entry = entry?;
                let text = fs::read_to_string(entry.path())?.replace(right, wrong);
                fs::write(to.join(entry.file_name()), text)?;
            }
        }
        let (is_right, said) = verdict(copy.path())?.context("the validator has gone")?;
        ensure!(!is_right && said.contains(named), "{wrong}: {said}");
    }
    Ok(())
}
