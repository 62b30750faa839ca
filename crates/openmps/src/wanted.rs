//! Whether the GPUs have what a program is to be given: `openmps run --gpu 7 --memory 400G`.

use std::path::Path;

use anyhow::bail;
use control::directories::Directories;
use control::frontend::Frontend;
use settings::parse_memory_of_each;

use crate::cli::Run;
use crate::doctor::{Visible, ask_driver};
use crate::show::bytes;

/// A device that the program could have.
#[derive(Debug)]
struct Gpu {
    name: String,
    uuid: String,
    memory_bytes: u64,
}

/// Looks, where the options ask for GPUs or memory, whether there is as much. Nothing is started
/// for that.
///
/// # Errors
/// A GPU that is not there: with those that are.
pub(crate) fn check(options: &Run, directories: &Directories, driver: &Path) -> anyhow::Result<()> {
    if options.gpu.is_none() && options.memory.is_none() {
        return Ok(());
    }
    // A driver that says nothing is for those to complain of who use it.
    let Some(gpus) = gpus(directories, driver).filter(|gpus| !gpus.is_empty()) else {
        return Ok(());
    };
    if let Some(list) = &options.gpu
        && let Some(missing) = missing(list, &gpus)
    {
        bail!("--gpu {list}: there is no GPU {missing}; there are: {}", listed(&gpus));
    }
    let limits = options.memory.as_ref().and_then(|text| parse_memory_of_each(text).ok());
    let memory = limits.into_iter().flatten().map(|(_, limit)| limit).max();
    let most_bytes = gpus.iter().map(|gpu| gpu.memory_bytes).max().unwrap_or(0);
    if let Some(memory) = memory.filter(|memory| memory.bytes() > most_bytes && most_bytes > 0) {
        eprintln!(
            "openmps: warning: --memory {} is more than a GPU has here: {}",
            bytes(memory.bytes()),
            bytes(most_bytes)
        );
    }
    Ok(())
}

/// Those of the daemon's server, or where none has started yet, of the machine.
fn gpus(directories: &Directories, driver: &Path) -> Option<Vec<Gpu>> {
    let state = Frontend::connect(directories).ok().and_then(|mut daemon| daemon.state().ok());
    // Devices of a user's own server come first: another's may be fewer.
    let own = rustix::process::geteuid().as_raw();
    let servers = state.map(|state| state.servers).unwrap_or_default();
    let server = servers.into_iter().find(|server| server.uid == own);
    let known = server.map(|server| server.snapshot.devices).filter(|known| !known.is_empty());
    if let Some(devices) = known {
        let gpus = devices.into_iter().map(|device| Gpu {
            name: device.name,
            uuid: device.uuid,
            memory_bytes: device.total_memory_bytes,
        });
        return Some(gpus.collect());
    }
    let facts = ask_driver(driver, Visible::All).ok()?;
    let gpus = facts.devices.into_iter().map(|device| Gpu {
        name: device.name,
        uuid: device.uuid,
        memory_bytes: device.memory_bytes,
    });
    Some(gpus.collect())
}

/// The first of a list, as in CUDA_VISIBLE_DEVICES, that is not there. What is neither a number nor
/// the beginning of a UUID is CUDA's to judge.
fn missing<'a>(list: &'a str, gpus: &[Gpu]) -> Option<&'a str> {
    list.split(',').map(str::trim).find(|wanted| match wanted.parse::<i64>() {
        Ok(index) => usize::try_from(index).is_ok_and(|index| index >= gpus.len()),
        Err(_) => {
            wanted.starts_with("GPU-") && !gpus.iter().any(|gpu| gpu.uuid.starts_with(wanted))
        }
    })
}

fn listed(gpus: &[Gpu]) -> String {
    let one = |(index, gpu): (usize, &Gpu)| {
        format!("{index} ({}, {})", link::printable(&gpu.name), link::printable(&gpu.uuid))
    };
    gpus.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_found() {
        let gpu = |uuid: &str| Gpu { name: "X".into(), uuid: uuid.into(), memory_bytes: 1 };
        let gpus = [gpu("GPU-aa11"), gpu("GPU-bb22")];
        for (list, wanted) in [
            ("0", None),
            ("1,0", None),
            ("7", Some("7")),
            ("0, 2", Some("2")),
            ("GPU-bb", None),
            ("GPU-cc", Some("GPU-cc")),
            ("-1", None),
            ("", None),
            ("MIG-x", None),
        ] {
            assert_eq!(missing(list, &gpus), wanted, "{list}");
        }
        assert_eq!(listed(&gpus), "0 (X, GPU-aa11), 1 (X, GPU-bb22)");
    }
}
