//! COVERAGE-PTX.md, from the suite that executes every form of PTX instructions on the software
//! GPU.
//!
//! The suite itself makes the table, since only it knows what it proved; it also fails when the
//! file differs.

use anyhow::Result;

use crate::command;
use crate::paths::Paths;

/// Runs the suite and lets it write the file.
///
/// # Errors
/// When the suite finds a form that gives a wrong result or that no test proves.
pub(crate) fn write(paths: &Paths) -> Result<()> {
    let arguments = ["test", "--quiet", "--package=softcuda", "--test=coverage"];
    command::run(
        command::cargo()
            .args(arguments)
            .env("OPENMPS_WRITE_COVERAGE", "1")
            .current_dir(&paths.root),
    )
}
