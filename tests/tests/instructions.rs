//! What a call costs: in this process, in instructions, a bound that a change of the posting path or of local calls must keep; and in commands to the
//! server.
//!
//! Instructions instead of nanoseconds, since they are the same on a busy machine. Each bound is what the release build took when it was set, and a
//! fifth more: compilers and C libraries differ. Who makes a call cheaper lowers its bound.

use anyhow::{Context as _, Result, ensure};
use openmps_tests::stepping::{self, Counted, ROUNDS};
use openmps_tests::tracer::Tracer;
use openmps_tests::{Daemon, Puppet, Sandbox};

/// Calls, and how many instructions each may take.
const BOUNDS: &[(&str, u64)] = &[
    ("context", 45),
    ("pointer", 160),
    ("capturing", 160),
    ("launch", 1440),
    ("record", 930),
    ("wait-event", 1100),
    ("fill", 1140),
];

#[test]
fn calls_take_no_more_instructions_than_they_did() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet: Puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 1")?;
    let Counted::Instructions(nothing) = stepping::count(&mut puppet, "counted nothing")? else {
        println!("skipped: this system lets no process trace another, so nothing can be counted");
        return puppet.dismiss();
    };
    let mut exceeded = Vec::new();
    for &(call, bound) in BOUNDS {
        let counted = stepping::count(&mut puppet, &format!("counted {call}"))?;
        let Counted::Instructions(with_marks) = counted else { continue };
        ensure!(with_marks > nothing, "{call} was not made");
        let instructions = with_marks - nothing;
        println!("{call}: {instructions} instructions, at most {bound}");
        if instructions > bound {
            exceeded.push((call, instructions, bound));
        }
    }
    ensure!(exceeded.is_empty(), "more instructions than allowed: {exceeded:?}");
    puppet.dismiss()
}

/// What recording a launch may add to it: two readings of the clock and a record. It was 449 in a build without optimisation across crates.
const RECORDED: u64 = 500;

#[test]
fn a_recorded_launch_takes_few_instructions_more() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet: Puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 1")?;
    let Counted::Instructions(plain) = stepping::count(&mut puppet, "counted launch")? else {
        println!("skipped: this system lets no process trace another, so nothing can be counted");
        return puppet.dismiss();
    };
    let file = daemon.sandbox().log_directory().join("recorded.json");
    let tracer = Tracer::start(&daemon, &puppet, &file)?;
    let Counted::Instructions(recorded) = stepping::count(&mut puppet, "counted launch")? else {
        return puppet.dismiss();
    };
    drop(tracer.end()?);
    ensure!(recorded > plain, "{recorded} instructions, as without a trace");
    let more = recorded - plain;
    println!("a launch: {plain} instructions, {more} more if it is recorded, at most {RECORDED}");
    ensure!(more <= RECORDED, "{more} more than {plain}");
    puppet.dismiss()
}

/// Commands that the server takes off this client's ring because of one order.
fn commands(daemon: &Daemon, puppet: &mut Puppet, order: &str) -> Result<u64> {
    // Its answer comes when all commands before it have been taken.
    let so_far = |puppet: &mut Puppet| {
        puppet.ask("free-bytes")?;
        let clients = daemon.snapshot()?.clients;
        let own = clients.iter().find(|client| client.pid == puppet.pid());
        anyhow::Ok(own.context("the client is not listed")?.commands)
    };
    let before = so_far(puppet)?;
    puppet.must(order)?;
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
        commands(&daemon, &mut puppet, "counted nothing")?;
    }
    let nothing = commands(&daemon, &mut puppet, "counted nothing")?;
    let again = commands(&daemon, &mut puppet, "counted settings")?;
    ensure!(again == nothing + 1, "{again} commands, {nothing} without the settings");
    let new = commands(&daemon, &mut puppet, "counted new-settings")?;
    // A question would be another command each.
    ensure!(new == nothing + ROUNDS as u64, "{new} commands, {nothing} without the settings");
    puppet.dismiss()
}
