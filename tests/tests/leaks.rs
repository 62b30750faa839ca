//! A thousand clients leave nothing behind in daemon, server and executor.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Sandbox};

const WARM_UP: usize = 10;
const CLIENTS: usize = 1000;
/// At once; the machine has few processors.
const SIDE_BY_SIDE: usize = 4;
/// What an allocator may keep of what was freed, and the list of departed clients. A kilobyte lost
/// for each client is more.
const RESIDENT_SLACK_BYTES: u64 = 1000 * 1024;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    resident_bytes: u64,
    descriptors: usize,
    threads: usize,
}

#[test]
fn a_thousand_clients_leave_nothing() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    have_a_standby(&daemon)?;
    serve(&daemon, WARM_UP)?;
    let before = holdings(&daemon)?;
    serve(&daemon, CLIENTS)?;

    let mut last = String::new();
    wait::until("all holdings are as they were", PATIENCE, || {
        let Ok(now) = holdings(&daemon) else { return false };
        last = format!("before {before:#?}\nnow {now:#?}");
        now.len() == before.len() && now.iter().all(|(process, now)| same(before.get(process), now))
    })
    .with_context(|| last.clone())
}

fn same(before: Option<&Holdings>, now: &Holdings) -> bool {
    before.is_some_and(|before| {
        // Fewer, where the last sessions of before had not come to their end yet.
        now.descriptors <= before.descriptors
            && now.threads <= before.threads
            && now.resident_bytes <= before.resident_bytes + RESIDENT_SLACK_BYTES
    })
}

/// An executor stands by once clients have stayed for a while, which a few do on a machine that
/// stands still: the server has it from the beginning.
fn have_a_standby(daemon: &Daemon) -> Result<()> {
    let mut stays = daemon.puppet()?;
    stays.must("open")?;
    stays.must("work 1")?;
    wait::until("an executor stands by", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.devices[0].standby_pid != 0)
    })?;
    stays.dismiss()
}

fn serve(daemon: &Daemon, clients: usize) -> Result<()> {
    let ever = daemon.snapshot().map_or(0, |snapshot| snapshot.clients_ever);
    let mut left = clients;
    while left > 0 {
        let batch = left.min(SIDE_BY_SIDE);
        let mut puppets = (0..batch).map(|_| daemon.puppet()).collect::<Result<Vec<Puppet>>>()?;
        for puppet in &mut puppets {
            puppet.tell("open")?;
            puppet.tell("work 1")?;
        }
        for mut puppet in puppets {
            for _ in 0..2 {
                let answer = puppet.answer_within(PATIENCE)?;
                ensure!(answer == "ok", "{answer}");
            }
            puppet.dismiss()?;
        }
        left -= batch;
    }
    wait::until("all clients have left", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.clients.is_empty())
    })?;
    let served = daemon.snapshot()?.clients_ever - ever;
    ensure!(served == clients as u64, "{served} of {clients} clients were attached");
    Ok(())
}

/// Of the daemon, the server and its executors, by role.
fn holdings(daemon: &Daemon) -> Result<BTreeMap<String, Holdings>> {
    let server = daemon.server()?;
    let mut found = BTreeMap::new();
    found.insert("daemon".to_owned(), of_process(daemon.pid())?);
    found.insert("server".to_owned(), of_process(server.pid)?);
    for (index, device) in server.snapshot.devices.iter().enumerate() {
        found.insert(format!("executor {index}"), of_process(device.executor_pid)?);
    }
    Ok(found)
}

fn of_process(pid: u32) -> Result<Holdings> {
    let directory = Path::new("/proc").join(pid.to_string());
    let status = fs::read_to_string(directory.join("status"))?;
    let number = |field: &str| -> Result<u64> {
        let line = status.lines().find(|line| line.starts_with(field)).context("no such field")?;
        line.split_whitespace().nth(1).context("no number")?.parse().context("no number")
    };
    Ok(Holdings {
        // Anonymous memory: pages of files and shared memory come and go with use.
        resident_bytes: number("RssAnon:")? * 1024,
        descriptors: fs::read_dir(directory.join("fd"))?.count(),
        threads: usize::try_from(number("Threads:")?)?,
    })
}
