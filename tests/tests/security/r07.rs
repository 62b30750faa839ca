//! Finding R7: what root writes where all may make files follows another user's link.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};

use anyhow::{Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Runtime, Sandbox, process};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[Test::new("r07_root_follows_no_link_to_write_a_trace", trace)];

fn trace() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (for_all, victim) = (sandbox.directory().join("for-all"), sandbox.directory().join("file"));
    fs::create_dir(&for_all)?;
    fs::set_permissions(&for_all, Permissions::from_mode(0o1777))?;
    fs::write(&victim, "root's")?;
    let link = for_all.join("trace.json");
    symlink(&victim, &link)?;
    lchown(&link, Some(ATTACKER), Some(ATTACKER))?;
    let trace = || {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        process::run(command.args(["trace", "-o"]).arg(&link).arg("/bin/true"), PATIENCE)
    };
    let finished = trace()?;
    ensure!(fs::read_to_string(&victim)? == "root's", "it was overwritten");
    ensure!(
        !finished.status.success() && finished.stderr.contains("symbolic link"),
        "{finished:?}"
    );
    // Where nothing is, and over what is root's.
    fs::remove_file(&link)?;
    for _ in 0..2 {
        trace()?.success()?;
        ensure!(fs::symlink_metadata(&link)?.is_file() && fs::metadata(&link)?.len() > 0);
    }
    Ok(())
}
