//! What CUDA refuses is refused to the caller alone, with the documented error, natively and under
//! OpenMPS alike.

use anyhow::{Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

/// Calls with a mistake, and the `CUresult`s that the driver API's documentation allows for it.
const CALLS: &[(&str, &[u32])] = &[
    ("empty-grid", &[1]),
    ("huge-block", &[1]),
    ("tall-grid", &[1]),
    ("huge-shared", &[1]),
    ("null-function", &[400]),
    ("wild-function", &[400]),
    ("wild-stream", &[400]),
    ("absent-kernel", &[500]),
    ("overrun-copy", &[1]),
    ("huge-allocation", &[2]),
    ("cut-ptx", &[218]),
    // The software GPU translates a kernel when it is looked up, and then says that it cannot.
    ("unknown-instruction", &[218, 801]),
    ("cut-fatbin", &[200, 218]),
    ("corrupt-fatbin", &[200]),
    ("no-image", &[200, 218]),
];

/// Calls with another process's device memory.
const FOREIGN: [&str; 4] = ["read-foreign", "write-foreign", "set-foreign", "free-foreign"];

#[test]
fn natively() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut puppet = Puppet::start(&sandbox, Runtime::Softcuda)?;
    puppet.must("open")?;
    refuse_all(&mut puppet)?;
    puppet.dismiss()
}

#[test]
fn under_openmps_to_that_client_only() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut witness = daemon.puppet()?;
    witness.must("open")?;
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    witness.tell("work 200")?;
    refuse_all(&mut puppet)?;
    ensure!(witness.answer_within(openmps_tests::wait::PATIENCE)? == "ok");
    puppet.dismiss()?;
    witness.dismiss()
}

#[test]
fn another_clients_memory_is_out_of_reach() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut owner = daemon.puppet()?;
    owner.must("open")?;
    owner.must("allocate 65536")?;
    let address = owner.ask("address")?;
    let mut stranger = daemon.puppet()?;
    stranger.must("open")?;
    for call in FOREIGN {
        stranger.expect(&format!("bad {call} {address}"), "error 1")?;
        stranger.must("work 1")?;
    }
    owner.must("work 1")?;
    stranger.dismiss()?;
    owner.dismiss()
}

fn refuse_all(puppet: &mut Puppet) -> Result<()> {
    puppet.must("bad good-fatbin")?;
    for (call, codes) in CALLS {
        let answer = puppet.ask(&format!("bad {call}"))?;
        ensure!(
            codes.iter().any(|code| answer == format!("error {code}")),
            "{call} was answered {answer:?}, expected an error of {codes:?}"
        );
        puppet.must("work 1")?;
    }
    Ok(())
}
