//! A client that keeps to no rules and does what the test tells it, line by line, as the puppet
//! does: each order is answered by one line.
//!
//! `attacker old-kernel PROGRAM ARGUMENT...` runs a program as on a kernel that lacks what newer
//! ones refuse for it ([`old_kernel`]), `attacker careless FILE PROGRAM ARGUMENT...` as the shell
//! of somebody who leaves things lying about ([`careless`]).

mod careless;
mod injected;
mod kernels;
mod lingering;
mod memory;
mod old_kernel;
mod session;
mod taking;
mod zombies;

use std::env;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use link::socket::Connection;
use link::wire::DAEMON_SOCKET;
use link::wire::command::{LimitGet, LimitReply, LimitSet, Opcode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerocopy::{FromBytes, IntoBytes};

use kernels::Kernels;
use lingering::Lingering;
use session::Session;
use zombies::Threads;

/// Longest that anybody may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Attacker {
    /// Connections to the daemon that have said something.
    greeted: Vec<Connection>,
    session: Option<Session>,
    /// What never reads what the lingering sockets have to send.
    readers: Vec<Lingering>,
    pages: Vec<memory::HugePages>,
    kernels: Option<Kernels>,
}

fn main() -> Result<()> {
    let mut arguments = env::args_os().skip(1);
    let mut next = || arguments.next().context("an argument is missing");
    match env::args().nth(1).as_deref() {
        Some("old-kernel") => {
            let (_, program) = (next()?, next()?);
            return old_kernel::exec(&program, arguments);
        }
        Some("careless") => {
            let (_, file, program) = (next()?, next()?, next()?);
            return careless::exec(&file, &program, arguments);
        }
        _ => {}
    }
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let mut attacker = Attacker::default();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let order = words.next().unwrap_or_default();
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        let answer = match numbers.map_err(Into::into).and_then(|it| attacker.obey(order, &it)) {
            Ok(answer) => answer,
            Err(error) => format!("failed: {error:#}").replace('\n', " "),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn daemon_socket() -> Result<PathBuf> {
    let directory = env::var_os("CUDA_MPS_PIPE_DIRECTORY").context("no directory")?;
    Ok(PathBuf::from(directory).join(DAEMON_SOCKET))
}

impl Attacker {
    fn obey(&mut self, order: &str, numbers: &[u64]) -> Result<String> {
        match (order, numbers) {
            ("greet", &[count]) => self.greet(count),
            ("attach", []) => {
                self.session = Some(Session::open(&daemon_socket()?)?);
                Ok("ok".to_owned())
            }
            ("request", &[count]) => {
                let Self { session, readers, .. } = self;
                let session = session.as_ref().context("not attached")?;
                lingering::send(&session.connection, b"\"close_context\"", count, readers)
            }
            ("stuff", &[count]) => {
                let Self { session, readers, .. } = self;
                let session = session.as_ref().context("not attached")?;
                lingering::send(&session.socket, b"{\"address\":4096}", count, readers)
            }
            ("leave", []) => {
                self.session = None;
                self.greeted.clear();
                Ok("ok".to_owned())
            }
            ("huge", &[kind]) => {
                let session = self.session.as_mut().context("not attached")?;
                memory::touch_lost_pages(session, kind as u32, &mut self.pages)
            }
            ("map", &[count]) => {
                let session = self.session.as_mut().context("not attached")?;
                memory::map_again_and_again(session, count)
            }
            ("type", &[pid]) => injected::type_into_terminal(pid as i32),
            ("keys", &[pid]) => injected::read_key(pid as i32),
            ("hold-first", &[pid]) => zombies::hold(pid as i32, Threads::First),
            ("hold-all", &[pid]) => zombies::hold(pid as i32, Threads::All),
            ("write", &[pid]) => injected::write_to_all(pid as i32),
            ("pin", &[size_bytes]) => {
                let session = self.session.as_mut().context("not attached")?;
                memory::pin(session, size_bytes)
            }
            ("load", []) => {
                let session = self.session.as_mut().context("not attached")?;
                self.kernels = Some(Kernels::load(session)?);
                Ok("ok".to_owned())
            }
            ("spin" | "late", []) => {
                let session = self.session.as_mut().context("not attached")?;
                self.kernels.as_ref().context("not loaded")?.launch(session, order, &[])?;
                Ok("ok".to_owned())
            }
            ("forge", &[place, value]) => {
                let session = self.session.as_mut().context("not attached")?;
                self.kernels.as_ref().context("not loaded")?.launch(
                    session,
                    order,
                    &[place, value],
                )?;
                kernels::await_word(session, value)?;
                Ok("ok".to_owned())
            }
            ("raise", &[limit, value]) => {
                let session = self.session.as_mut().context("not attached")?;
                let set = LimitSet { limit: limit as u32, reserved: 0, value };
                Ok(format!("raised {}", session.call(Opcode::LimitSet, &[set.as_bytes()])?.0))
            }
            ("limit", &[limit]) => {
                let session = self.session.as_mut().context("not attached")?;
                let get = LimitGet { limit: limit as u32, reserved: 0 };
                let (code, reply) = session.call(Opcode::LimitGet, &[get.as_bytes()])?;
                let (reply, _) = LimitReply::read_from_prefix(&reply)
                    .map_err(|_| anyhow!("no limit: {code}"))?;
                Ok(format!("limit {}", reply.value))
            }
            ("error", []) => {
                let session = self.session.as_ref().context("not attached")?;
                Ok(format!("error {}", session.error()))
            }
            ("forget-error", []) => {
                self.session.as_ref().context("not attached")?.forget_error();
                Ok("ok".to_owned())
            }
            ("go", []) => {
                self.kernels.as_ref().context("not loaded")?.go();
                Ok("ok".to_owned())
            }
            ("signal", &[value]) => {
                let session = self.session.as_mut().context("not attached")?;
                kernels::signal(session, value)?;
                session.ping()
            }
            ("events", &[count]) => {
                let session = self.session.as_mut().context("not attached")?;
                kernels::events(session, count as u32)?;
                session.ping()
            }
            ("contexts", &[count]) => {
                taking::contexts(self.session.as_ref().context("not attached")?, count)
            }
            ("leave-behind", &[count]) => {
                let session = self.session.as_mut().context("not attached")?;
                taking::leave_behind(&daemon_socket()?, session, count)
            }
            ("reserve-all", []) => {
                taking::reserve_all(self.session.as_mut().context("not attached")?)
            }
            ("reserve", &[size_bytes]) => {
                let session = self.session.as_mut().context("not attached")?;
                Ok(format!("reserved {}", taking::reserve(session, size_bytes)?))
            }
            ("load-nothing", &[sessions, size_bytes]) => {
                taking::load_nothing(&daemon_socket()?, sessions, size_bytes)
            }
            ("import-made-up", &[count, size_bytes]) => {
                let session = self.session.as_mut().context("not attached")?;
                taking::import_made_up(session, count as u32, size_bytes)
            }
            _ => bail!("the order {order} {numbers:?} does not exist"),
        }
    }

    /// Says something to the daemon that is understood, and something that is not, over so many
    /// connections, with a lingering socket each time.
    fn greet(&mut self, count: u64) -> Result<String> {
        let socket = daemon_socket()?;
        let hello = format!("{{\"ui\":{{\"protocol\":{}}}}}", link::wire::PROTOCOL_VERSION);
        let mut sent = 0;
        for _ in 0..count {
            // Who is not let in any more has done what it could.
            let Ok(connection) = Connection::connect(&socket, Duration::from_secs(1)) else {
                break;
            };
            for packet in [hello.as_bytes(), b"[["] {
                lingering::send(&connection, packet, 1, &mut self.readers)?;
            }
            self.greeted.push(connection);
            sent += 1;
        }
        Ok(format!("greeted {sent}"))
    }
}
