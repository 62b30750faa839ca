//! Finding S5 of the third review: what a client raises of the context's limits stays when it has
//! gone, and counts for nobody then.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("s05_limits_fall_when_who_raised_them_has_gone", raised)];

/// `CUlimit`: the buffer of `printf`, the heap, launches that wait; and what they are raised to.
const RAISED: [(u32, u64); 3] = [(1, 8 << 20), (2, 32 << 20), (4, 8192)];
const HEAP: usize = 1;
/// What another client counts on meanwhile.
const MODEST_HEAP: u64 = 16 << 20;

fn attached(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program("attacker")?;
    let mut client = Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))?;
    client.must("attach")?;
    Ok(client)
}

fn limits(client: &mut Puppet) -> Result<[u64; 3]> {
    let mut limits = [0; 3];
    for (limit, (number, _)) in limits.iter_mut().zip(RAISED) {
        let answer = client.ask(&format!("limit {number}"))?;
        let value = answer.strip_prefix("limit ").with_context(|| answer.clone())?;
        *limit = value.parse()?;
    }
    Ok(limits)
}

fn raise_all(client: &mut Puppet) -> Result<()> {
    RAISED
        .into_iter()
        .try_for_each(|(limit, value)| client.expect(&format!("raise {limit} {value}"), "raised 0"))
}

fn raised() -> Result<()> {
    let settings = [("OPENMPS_PROVISIONING", "multiuser")];
    let daemon = Daemon::start_with(Sandbox::of_several_users()?, &settings)?;
    let mut other = attached(&daemon, VICTIM)?;
    let first = limits(&mut other)?;
    let raised = RAISED.map(|(_, value)| value);
    ensure!(first.iter().zip(raised).all(|(first, raised)| *first < raised), "{first:?}");
    let mut one = attached(&daemon, ATTACKER)?;
    raise_all(&mut one)?;
    ensure!(limits(&mut other)? == raised, "it holds for all");
    drop(one);
    let mut fall_to = |wanted: [u64; 3]| {
        let mut now = raised;
        wait::until("the limits fall", PATIENCE, || {
            now = limits(&mut other).unwrap_or(now);
            now == wanted
        })
        .with_context(|| format!("{now:?} instead of {wanted:?}"))
    };
    fall_to(first)?;
    // What somebody else counts on stays.
    let mut one = attached(&daemon, ATTACKER)?;
    raise_all(&mut one)?;
    let mut modest = attached(&daemon, VICTIM)?;
    modest.expect(&format!("raise 2 {MODEST_HEAP}"), "raised 0")?;
    drop(one);
    let mut wanted = first;
    wanted[HEAP] = MODEST_HEAP;
    fall_to(wanted)?;
    drop(modest);
    fall_to(first)
}
