//! Finding F13: connections that say nothing do not keep the metrics from who asks for them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::{Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[Test::new("f13_idle_connections_do_not_starve_a_scrape", idle)];

fn idle() -> Result<()> {
    // An address that no other test has, on a port that is nobody's.
    let [_, second, third, fourth] = std::process::id().to_be_bytes();
    let address = SocketAddr::from((Ipv4Addr::new(127, 64 | second, third, fourth), 9409));
    let daemon = Daemon::start_with(
        Sandbox::of_several_users()?,
        &[("OPENMPS_METRICS", &address.to_string())],
    )?;
    let sandbox = daemon.sandbox();
    let mut strangers = Vec::new();
    // One by one they would be waited for much longer than this test waits.
    for _ in 0..2 {
        let program = sandbox.installation.own_program("stranger")?;
        let mut command = sandbox.command_as(ATTACKER, program, Runtime::OpenMps);
        let mut stranger = Puppet::spawn(command.arg("idle").args([&address.to_string(), "150"]))?;
        let count: usize = stranger.answer_within(PATIENCE)?.parse()?;
        strangers.push((stranger, count));
    }
    ensure!(strangers.iter().map(|(_, count)| count).sum::<usize>() > 64);
    let mut scraper = TcpStream::connect_timeout(&address, PATIENCE)?;
    scraper.set_read_timeout(Some(PATIENCE))?;
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    scraper.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    ensure!(answer.contains("\nopenmps_servers 0\n"), "{answer}");
    Ok(())
}
