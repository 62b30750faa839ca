//! `openmps doctor`: looks for every cause of failure that users meet, and says what to do about
//! it.
//!
//! Each [`checks`] function looks at one thing and tells what it found; none changes anything.

mod checks;
mod driver;
mod runtime;
mod tested;

use std::path::Path;
use std::process::ExitCode;

use control::directories::Directories;
use serde::Serialize;

use crate::FAILURE;
use crate::cli::{Doctor, Format};

pub(crate) use driver::{Visible, asked as ask_driver, probe};

/// Version of the meaning of what `--json` prints.
const SCHEMA: u32 = 1;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, but not as the user may think.
    Note,
    /// Keeps programs from running.
    Problem,
}

/// What one look found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// What was looked at.
    subject: &'static str,
    verdict: Verdict,
    /// What was found.
    text: String,
    /// What to do; empty when all is well.
    advice: String,
}

impl Finding {
    fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Ok, text: text.into(), advice: String::new() }
    }

    fn note(subject: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Note, text: text.into(), advice: advice.into() }
    }

    fn problem(subject: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Problem, text: text.into(), advice: advice.into() }
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: u32,
    findings: &'a [Finding],
}

/// Looks at everything. `configuration` is what was wrong with the configuration file, if anything
/// was.
///
/// # Errors
/// Standard output.
pub(crate) fn doctor(
    options: &Doctor,
    configuration: anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let format = options.format();
    let directories = Directories::from_environment();
    let mut findings = vec![checks::configuration(configuration)];
    findings.extend(options.program.as_deref().map(checks::program));
    findings.extend(checks::runtimes(options.program.as_deref()));
    findings.push(checks::kernel());
    findings.push(tested::c_library(link::c_library::glibc_version().as_deref()));
    findings.extend(checks::libraries());
    findings.push(checks::library_path(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
    findings.extend(driver::driver());
    findings.extend(checks::shared_memory(Path::new("/dev/shm")));
    findings.push(checks::descriptors());
    findings.push(checks::pipe_directory(&directories));
    findings.push(checks::original_daemon(&directories));
    findings.extend(checks::daemon(&directories));
    findings.push(checks::log_directory(&directories));
    findings.extend(checks::native_processes(&directories));
    match format {
        Format::Json => {
            let document = Document { schema: SCHEMA, findings: &findings };
            println!("{}", serde_json::to_string_pretty(&document)?);
        }
        Format::Table => findings.iter().for_each(print),
    }
    let problems = findings.iter().filter(|finding| finding.verdict == Verdict::Problem).count();
    if format == Format::Table {
        match problems {
            0 => println!("\nnothing keeps programs from running under OpenMPS"),
            1 => println!("\n1 problem"),
            _ => println!("\n{problems} problems"),
        }
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) })
}

fn print(finding: &Finding) {
    let word = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::Problem => "PROBLEM",
    };
    println!("{word:<8} {:<18} {}", finding.subject, finding.text);
    if !finding.advice.is_empty() {
        println!("{:27} -> {}", "", finding.advice);
    }
}
