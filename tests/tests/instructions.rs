//! What a call costs: in this process, in instructions of the client library; and in commands to
//! the server.
//!
//! Instructions instead of nanoseconds, since they are the same on a busy machine. A count that is
//! a tenth above or below what is stored here is an error: see CONTRIBUTING.md. Counted in the
//! release build, which is what `cargo xtask test` and `cargo xtask programs` lay out for the
//! tests.

use anyhow::{Context as _, Result, ensure};
use instruction_counts::Stored;
use openmps_tests::puppet::COUNTED_ROUNDS;
use openmps_tests::tracer::Tracer;
use openmps_tests::{Daemon, Puppet, Sandbox};

/// What calls take, by the names that the puppet knows.
const CALLS: [Stored; 7] = [
    Stored {
        what: "context",
        instructions: 30,
        why: "the thread's state is found by a TLS descriptor, without a call",
    },
    Stored { what: "pointer", instructions: 124, why: "the value is written where it is found" },
    Stored {
        what: "capturing",
        instructions: 124,
        why: "a thread remembers its last streams, and writes to no shared memory",
    },
    Stored {
        what: "launch",
        instructions: 1109,
        why: "a command's words are stored in the ring in one run, and limits that do not change are not looked up",
    },
    Stored {
        what: "record",
        instructions: 761,
        why: "a command's words are stored in the ring in one run",
    },
    Stored {
        what: "wait-event",
        instructions: 904,
        why: "a command's words are stored in the ring in one run",
    },
    Stored {
        what: "fill",
        instructions: 943,
        why: "a command's words are stored in the ring in one run",
    },
];

/// What recording a launch adds to it.
const RECORDED: Stored = Stored {
    what: "recording a launch",
    instructions: 207,
    why: "two readings of the clock, which is the kernel's code and not counted, and a record",
};

#[test]
fn calls_take_the_instructions_that_are_stored() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet: Puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 1")?;
    let mut changed = Vec::new();
    for call in CALLS {
        let counted = puppet.count(call.what)?;
        changed.extend(call.check(counted).err().map(|change| change.to_string()));
    }
    ensure!(changed.is_empty(), "{}", changed.join("\n"));
    puppet.dismiss()
}

#[test]
fn recording_a_launch_takes_the_instructions_that_are_stored() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet: Puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 1")?;
    let plain = puppet.count("launch")?;
    let file = daemon.sandbox().log_directory().join("recorded.json");
    let tracer = Tracer::start(&daemon, &puppet, &file)?;
    let recorded = puppet.count("launch")?;
    drop(tracer.end()?);
    ensure!(recorded > plain, "{recorded} instructions, as without a trace");
    RECORDED.check(recorded - plain)?;
    puppet.dismiss()
}

/// Commands that the server takes off this client's ring because of one counted call.
fn commands(daemon: &Daemon, puppet: &mut Puppet, call: &str) -> Result<u64> {
    // Its answer comes when all commands before it have been taken.
    let so_far = |puppet: &mut Puppet| {
        puppet.ask("free-bytes")?;
        let clients = daemon.snapshot()?.clients;
        let own = clients.iter().find(|client| client.pid == puppet.pid());
        anyhow::Ok(own.context("the client is not listed")?.commands)
    };
    let before = so_far(puppet)?;
    puppet.count(call)?;
    Ok(so_far(puppet)? - before)
}

/// Frameworks set the same attributes of a function before every launch of it.
#[test]
fn what_a_function_is_told_again_makes_no_command() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet: Puppet = daemon.puppet()?;
    puppet.must("open")?;
    // Memory and events of the first time are used again.
    for _ in 0..2 {
        commands(&daemon, &mut puppet, "nothing")?;
    }
    let nothing = commands(&daemon, &mut puppet, "nothing")?;
    let again = commands(&daemon, &mut puppet, "settings")?;
    ensure!(again == nothing + 1, "{again} commands, {nothing} without the settings");
    let new = commands(&daemon, &mut puppet, "new-settings")?;
    // A question would be another command each.
    ensure!(
        new == nothing + COUNTED_ROUNDS as u64,
        "{new} commands, {nothing} without the settings"
    );
    puppet.dismiss()
}
