//! Server processes: started as their user, spoken to over a socket pair, waited for.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use link::closer::{Closer, Foreign, leave_sockets};
use link::inheritance::leave_terminal;
use link::socket::{Connection as Socket, SocketError};
use link::user::User;
use link::wire::daemon::{ToDaemon, ToServer};
use link::wire::owner::Owner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, Signal, pidfd_open};

use super::{Options, environment};
use crate::core::command::Pid;
use crate::core::intake::Intake;
use crate::core::{Event, ServerExit};
use crate::zombies::is_zombie;

/// Shown for servers by `ps`, where scripts look for it.
const SHOWN_NAME: &str = "nvidia-cuda-mps-server";
/// Messages that a server may leave unread; with more it counts as stuck. Of those that its own or
/// another user causes there are fewer: the core has one snapshot asked for at a time, and a
/// bounded number of connections on their way.
const MAX_UNSENT: usize = 4096;
/// Between a server's closing of its socket and its killing, if it does not end by itself.
const HANG_UP_GRACE: Duration = Duration::from_secs(5);
/// After a server's killing it is looked at so often whether it has ended.
const KILLED_INTERVAL: Duration = Duration::from_millis(100);
/// Servers of one user that have ended and that a debugger holds. A debugger that is in use looks
/// at once.
const MOST_UNREAPED: usize = 4;
/// Group of users that have none that is known.
const NOBODY: u32 = 65534;

/// A server's process.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    owner: Owner,
    exit_fd: OwnedFd,
    socket: Option<Foreign>,
    unsent: VecDeque<(ToServer, Handed)>,
    /// Connections that have gone to it since they were last asked for.
    handed_on: usize,
    intake: Intake,
    log: Option<OwnedFd>,
    /// Whether it has been killed: it runs nothing more then.
    is_killed: bool,
    /// Set once it has hung up, and until it has ended once it was killed.
    pub(super) kill_at: Option<Instant>,
}

/// What goes to a server with a message: a client's connection, and a descriptor of its process, in
/// this order.
#[derive(Debug, Default)]
pub(super) struct Handed {
    pub(super) connection: Option<Foreign>,
    pub(super) process: Option<Arc<OwnedFd>>,
}

/// What a server did with its socket.
pub(super) enum Heard {
    Message(Box<ToDaemon>),
    Nothing,
    /// It sent what no server sends, or closed.
    HungUp,
    /// A part of a message, the rest of which may be there already.
    Part,
}

impl ServerProcess {
    /// Starts a server for a user, of this group where one is known; it counts for `owner`.
    pub(super) fn start(
        options: &Options,
        (uid, gid): (u32, Option<u32>),
        owner: Owner,
        closer: &Closer,
    ) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair().map_err(io::Error::other)?;
        ours.refuse_descriptors();
        let ours = closer.guard(owner.clone(), ours);
        let theirs = OwnedFd::from(theirs);
        // Inherited by this child alone: no other thread of the daemon starts processes, and this
        // one closes it below.
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        // Not a file of ours: it is the user's process, which can do all that a descriptor allows.
        // Nobody waits at either end.
        let (log, written) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut command = Command::new(&options.server.program);
        let is_anothers = uid != rustix::process::geteuid().as_raw();
        if is_anothers {
            if !rustix::process::geteuid().is_root() {
                return Err(Errno::PERM.into()); // Only root starts servers of others.
            }
            // That user can trace it, so it gets nothing of ours that it does not need.
            command.env_clear().envs(environment::for_another_user(std::env::vars_os()));
            leave_terminal(&mut command)?;
        }
        command.arg0(SHOWN_NAME).args(&options.server.arguments);
        // Inherited by this child alone, as above.
        let faults = options.server.faults.as_ref().map(rustix::io::dup).transpose()?;
        if let Some(faults) = &faults {
            command.args([OsStr::new("--faults-fd"), faults.as_raw_fd().to_string().as_ref()]);
        }
        if is_anothers {
            // It becomes that user's itself, once it runs: `spawn` waits until then, and that user
            // could stop it.
            let gid = gid.or_else(|| primary_group(uid)).unwrap_or(NOBODY);
            command.args(User { uid, gid }.arguments());
        }
        command
            .args([OsStr::new("--control-fd"), theirs.as_raw_fd().to_string().as_ref()])
            .envs(options.server.environment.iter().map(|(name, value)| (name, value)))
            .env("CUDA_MPS_PIPE_DIRECTORY", options.directories.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", options.directories.log())
            .env_remove("NOTIFY_SOCKET")
            .env_remove(super::detach::MARK)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(written.try_clone()?)
            .stderr(written)
            // Signals from a terminal are for the daemon, which tells its servers.
            .process_group(0);
        leave_sockets(&mut command);
        let mut child = command.spawn()?;
        let exit_fd =
            match pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty()) {
                Ok(exit_fd) => exit_fd,
                Err(error) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error.into());
                }
            };
        Ok(ServerProcess {
            child,
            owner,
            exit_fd,
            socket: Some(ours),
            unsent: VecDeque::new(),
            handed_on: 0,
            intake: Intake::default(),
            log: Some(log),
            is_killed: false,
            kill_at: None,
        })
    }

    pub(super) fn pid(&self) -> Pid {
        self.child.id()
    }

    /// For whom it counts.
    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The reading end of its standard output and error, once.
    pub(super) fn take_log(&mut self) -> Option<OwnedFd> {
        self.log.take()
    }

    /// Readable once the process has ended.
    pub(super) fn exit_fd(&self) -> &OwnedFd {
        &self.exit_fd
    }

    pub(super) fn socket(&self) -> Option<&Foreign> {
        self.socket.as_ref()
    }

    /// Whether messages wait for room.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whose connections wait for room.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Owner> {
        self.unsent.iter().filter_map(|(_, handed)| Some(handed.connection.as_ref()?.owner()))
    }

    /// An event for each connection that has gone to it since this was last asked.
    pub(super) fn handed_on(&mut self) -> impl Iterator<Item = Event> + use<> {
        let (count, server) = (std::mem::take(&mut self.handed_on), self.pid());
        (0..count).map(move |_| Event::HandedOn { server })
    }

    /// Queues a message and sends what can be sent. An error means that the server is stuck or
    /// gone.
    pub(super) fn send(
        &mut self,
        message: ToServer,
        mut handed: Handed,
    ) -> Result<(), SocketError> {
        if self.unsent.len() >= MAX_UNSENT {
            return Err(SocketError::TimedOut(Duration::ZERO));
        }
        // The server goes on with it, whether it gets it before this process has closed it or not.
        handed.connection = handed.connection.map(Foreign::shared);
        self.unsent.push_back((message, handed));
        self.flush()
    }

    /// Sends what waits for room.
    pub(super) fn flush(&mut self) -> Result<(), SocketError> {
        let Some(socket) = &self.socket else {
            self.unsent.clear();
            return Ok(());
        };
        while let Some((message, Handed { connection, process })) = self.unsent.front() {
            let connection = connection.as_ref().map(|connection| connection.as_fd());
            let descriptors: Vec<_> =
                connection.into_iter().chain(process.as_ref().map(AsFd::as_fd)).collect();
            match socket.send(message, &descriptors, Duration::ZERO) {
                // A client whose hello grew too long on the way: its socket closes, which tells it.
                Ok(()) | Err(SocketError::TooLong) => {}
                // The kernel has too many descriptors on their way, to others that stand still. It
                // is not this server that is stuck.
                Err(SocketError::Kernel(Errno::TOOMANYREFS)) => {}
                Err(SocketError::TimedOut(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
            self.handed_on += usize::from(connection.is_some());
            self.unsent.pop_front();
        }
        Ok(())
    }

    pub(super) fn hear(&mut self) -> Heard {
        let Some(socket) = &self.socket else { return Heard::Nothing };
        match socket.try_hear_packet() {
            Ok(Some(packet)) => match self.intake.take(&packet) {
                Ok(Some(message)) => Heard::Message(Box::new(message)),
                Ok(None) => Heard::Part,
                Err(_) => Heard::HungUp,
            },
            Ok(None) => Heard::Nothing,
            Err(_) => Heard::HungUp,
        }
    }

    /// Stops listening to a server that has closed or talks nonsense; it is given a moment to end
    /// by itself.
    pub(super) fn hang_up(&mut self) {
        self.socket = None;
        self.unsent.clear();
        self.kill_at.get_or_insert(Instant::now() + HANG_UP_GRACE);
    }

    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        // Looked at again then: a thread that somebody traces keeps the process's descriptor from
        // telling.
        self.kill_at = Some(Instant::now() + KILLED_INTERVAL);
        let _ = self.child.kill(); // Fails only if it has ended.
    }

    /// How it ended, if it has.
    pub(super) fn exit(&mut self) -> Option<ServerExit> {
        // Before it is waited for, or what ends in between would seem to be held.
        let has_ended = self.has_ended();
        if has_ended {
            self.end_executors();
        }
        let Some(status) = self.child.try_wait().ok()? else {
            return has_ended.then_some(ServerExit::Signal(Signal::KILL.as_raw()));
        };
        Some(match status.signal() {
            Some(signal) => ServerExit::Signal(signal),
            None => ServerExit::Status(status.code().unwrap_or(-1)),
        })
    }

    /// Ends its executors, which stay if they are stopped: they would have the GPU still when the
    /// next user's server starts. They are in its process group, whose number is nobody else's
    /// before it has been waited for.
    fn end_executors(&self) {
        let group = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            // None may be left, which is an error as well.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }

    /// Whether it has ended, even if it cannot be waited for as somebody traces it.
    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.exit_fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let told = poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0);
        told || self.is_killed && is_zombie(self.pid())
    }

    /// What is left of it once it has ended, if it was not waited for.
    pub(super) fn unreaped(mut self) -> Option<Unreaped> {
        let is_left = matches!(self.child.try_wait(), Ok(None));
        is_left.then(|| Unreaped { owner: self.owner, child: self.child })
    }
}

/// A server that has ended and cannot be waited for yet, as somebody traces it.
#[derive(Debug)]
pub(super) struct Unreaped {
    child: Child,
    owner: Owner,
}

impl Unreaped {
    /// Forgets those that can be waited for by now.
    pub(super) fn reap(all: &mut Vec<Self>) {
        all.retain_mut(|unreaped| matches!(unreaped.child.try_wait(), Ok(None)));
    }

    /// Whether a user has so many that there are to be no more: they are processes of the daemon's.
    pub(super) fn are_too_many(all: &[Self], owner: &Owner) -> bool {
        all.iter().filter(|unreaped| unreaped.owner == *owner).count() >= MOST_UNREAPED
    }
}

/// The group of a user in `/etc/passwd`.
fn primary_group(uid: u32) -> Option<u32> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        (fields.next()?.parse() == Ok(uid)).then(|| fields.next()?.parse().ok())?
    })
}
