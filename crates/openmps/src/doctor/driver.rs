//! The native driver and its devices, asked in a process of their own.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use server::probe::{DeviceFacts, DriverFacts};

use super::{Finding, tested};
use crate::installation::{DriverWish, NativeDriver, library_directory, native_driver};

const SUBJECT: &str = "driver";
const DEVICE: &str = "device";
/// CUDA 12.0: the first whose driver has all that the executor needs.
const OLDEST_VERSION: i32 = 12_000;
/// The first compute capability that MPS serves (NVIDIA's MPS guide, 2.3.1.1).
const OLDEST_CAPABILITY: (i32, i32) = (3, 5);
/// From Volta on a device isolates its clients.
const VOLTA: (i32, i32) = (7, 0);
/// `CU_COMPUTEMODE_PROHIBITED`.
const PROHIBITED: i32 = 2;
/// `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const EXCLUSIVE: i32 = 3;

/// Which driver would do the work, and what it has.
pub(super) fn driver() -> Vec<Finding> {
    let chosen =
        library_directory().and_then(|libraries| native_driver(DriverWish::None, &libraries));
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            return vec![Finding::problem(
                SUBJECT,
                format!("{error:#}"),
                "set OPENMPS_NATIVE_DRIVER to the driver library, or install NVIDIA's driver",
            )];
        }
    };
    let path = chosen.path().display();
    let facts = match asked(chosen.path(), Visible::ToThisProcess) {
        Ok(facts) => facts,
        Err(said) => {
            return vec![Finding::problem(
                SUBJECT,
                format!("{path} does not work: {said}"),
                "see whether nvidia-smi works; inside a container, whether it was given the GPU",
            )];
        }
    };
    let mut findings = vec![match chosen {
        NativeDriver::SoftwareForWant(_) => Finding::note(
            SUBJECT,
            format!("there is no NVIDIA driver: the software GPU does the work ({path})"),
            "nothing to do on a machine without a GPU; else install NVIDIA's driver",
        ),
        _ => judge_version(chosen.path(), facts.version),
    }];
    let any_volta = facts.devices.iter().any(|device| device.compute_capability >= VOLTA);
    findings.extend(facts.devices.iter().map(|device| judge(device, any_volta)));
    findings
}

fn judge_version(path: &Path, version: i32) -> Finding {
    let path = path.display();
    if version < OLDEST_VERSION {
        return Finding::problem(
            SUBJECT,
            format!("{path} is of CUDA {}, which is too old", version_text(version)),
            format!("install a driver of CUDA {} or later", version_text(OLDEST_VERSION)),
        );
    }
    let tested = tested::driver(version / 1000, version % 1000 / 10);
    tested.finding(SUBJECT, format!("{path}, CUDA {}", version_text(version)))
}

fn judge(device: &DeviceFacts, beside_volta: bool) -> Finding {
    let DeviceFacts { name, uuid, compute_capability: (major, minor), compute_mode, .. } = device;
    let label = format!("{name} ({uuid}), compute capability {major}.{minor}");
    if device.compute_capability < OLDEST_CAPABILITY {
        let text = format!("{label}: MPS begins with 3.5");
        return Finding::problem(DEVICE, text, "leave it out by CUDA_VISIBLE_DEVICES");
    }
    if !device.unified_addressing {
        let text = format!("{label}: it has no unified addressing");
        return Finding::problem(DEVICE, text, "leave it out by CUDA_VISIBLE_DEVICES");
    }
    if beside_volta && device.compute_capability < VOLTA {
        let text = format!("{label}: a device older than Volta beside one that is not");
        return Finding::problem(
            DEVICE,
            text,
            "give the two kinds servers of their own, by CUDA_VISIBLE_DEVICES of their daemons",
        );
    }
    match *compute_mode {
        PROHIBITED => Finding::problem(
            DEVICE,
            format!("{label}: its compute mode is PROHIBITED"),
            "an administrator changes it: nvidia-smi -i INDEX -c DEFAULT",
        ),
        EXCLUSIVE => tested::gpu(name).finding(
            DEVICE,
            format!(
                "{label}; EXCLUSIVE_PROCESS: programs outside of OpenMPS are kept out while it runs"
            ),
        ),
        _ => tested::gpu(name).finding(DEVICE, label),
    }
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Which devices are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visible {
    /// Those that CUDA_VISIBLE_DEVICES leaves.
    ToThisProcess,
    All,
}

/// Asks a driver in a child process.
pub(crate) fn asked(path: &Path, visible: Visible) -> Result<DriverFacts, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    if visible == Visible::All {
        command.env_remove("CUDA_VISIBLE_DEVICES");
    }
    let output = command
        .arg("probe-driver")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(match said.trim() {
            "" => format!("it ended with {}", output.status),
            said => said.trim_start_matches("openmps: ").to_owned(),
        });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The child's part: `openmps probe-driver PATH`.
///
/// # Errors
/// What is wrong with the driver.
pub(crate) fn probe(path: &Path) -> anyhow::Result<ExitCode> {
    let facts = server::probe::probe(path).map_err(anyhow::Error::msg)?;
    println!("{}", serde_json::to_string(&facts)?);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn devices_that_mps_cannot_serve_are_named() {
        let device = |compute_capability, compute_mode, unified_addressing| DeviceFacts {
            name: "NVIDIA H200".into(),
            uuid: "GPU-1".into(),
            pci_bus_id: String::new(),
            compute_capability,
            compute_mode,
            unified_addressing,
            memory_bytes: 1 << 30,
        };
        for (device, beside_volta, verdict) in [
            (device((9, 0), 0, true), true, Verdict::Ok),
            (device((9, 0), EXCLUSIVE, true), true, Verdict::Ok),
            (device((9, 0), PROHIBITED, true), true, Verdict::Problem),
            (device((3, 0), 0, true), false, Verdict::Problem),
            (device((6, 0), 0, true), true, Verdict::Problem),
            (device((6, 0), 0, true), false, Verdict::Ok),
            (device((9, 0), 0, false), true, Verdict::Problem),
        ] {
            assert_eq!(judge(&device, beside_volta).verdict, verdict, "{device:?}");
        }
        let path = Path::new("/usr/lib/libcuda.so.1");
        let old = judge_version(path, 11_080);
        assert!(old.verdict == Verdict::Problem && old.text.contains("11.8"), "{old:?}");
        assert!(old.advice.contains("12.0"), "{old:?}");
        let tested = judge_version(path, 13_000);
        assert_eq!(
            (tested.verdict, &*tested.text),
            (Verdict::Ok, "/usr/lib/libcuda.so.1, CUDA 13.0")
        );
        let other = judge_version(path, 12_090);
        assert!(other.verdict == Verdict::Note, "{other:?}");
        assert!(other.text.contains("CUDA 12.9: not tested"), "{other:?}");
        let mut unknown = device((9, 0), 0, true);
        unknown.name = "Some GPU".into();
        let finding = judge(&unknown, false);
        assert!(finding.verdict == Verdict::Note, "{finding:?}");
        assert!(finding.text.contains("not tested"), "{finding:?}");
    }
}
