//! How fast the link is between two processes: `cargo run --release -p link --example link_bench`.
//!
//! Prints the round trip of a called command (p50, p99) and posted 64-byte commands per second. The
//! child process is the executor's end and does nothing but take and answer.

#[cfg(feature = "loom")]
fn main() {}

#[cfg(not(feature = "loom"))]
fn main() {
    bench::main();
}

#[cfg(not(feature = "loom"))]
mod bench {
    use link::call::{self, CallSlots};
    use link::ring::{Consumer, Producer};
    use link::session_memory::SessionMemory;
    use link::socket::Connection;
    use link::spin::{Cores, Spin};
    use link::wire::command::{NO_CALL, Opcode};
    use rustix::fd::{AsFd, OwnedFd};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const ROUND_TRIPS: usize = 200_000;
    const POSTED: u32 = 20_000_000;
    const SOON: Duration = Duration::from_secs(10);

    pub(super) fn main() {
        if std::env::args().nth(1).as_deref() == Some("executor") {
            return executor();
        }
        let file = SessionMemory::create_file().expect("a session file");
        let memory = Arc::new(SessionMemory::map(file.as_fd()).expect("its mapping"));
        let (ours, theirs) = Connection::pair().expect("a socket pair");
        let program = std::env::current_exe().expect("this program");
        let stdin = Stdio::from(OwnedFd::from(theirs));
        let mut child =
            Command::new(program).arg("executor").stdin(stdin).spawn().expect("the other process");
        ours.send(&(), &[file.as_fd()], SOON).expect("the file is sent");
        let (mut producer, slots) = (Producer::new(Arc::clone(&memory)), CallSlots::new(memory));
        let mut alive = || !ours.is_closed();
        let (mut spin, mut reply) = (Spin::with_longest(Duration::from_millis(1)), Vec::new());
        let mut ping = |producer: &mut Producer| {
            let call = slots.claim().expect("a slot");
            producer.post(Opcode::Ping, call.slot(), 0, &[], &mut alive).expect("posted");
            reply.clear();
            call.wait(&mut spin, &mut reply, &mut alive).expect("an answer")
        };
        (0..10_000).for_each(|_| drop(ping(&mut producer).to_string()));
        let mut times_ns: Vec<u64> = (0..ROUND_TRIPS)
            .map(|_| {
                let started = Instant::now();
                ping(&mut producer);
                started.elapsed().as_nanos() as u64
            })
            .collect();
        times_ns.sort_unstable();
        let at = |per_mille: usize| times_ns[ROUND_TRIPS * per_mille / 1000];
        println!("round trip: p50 {} ns, p99 {} ns, p99.9 {} ns", at(500), at(990), at(999));
        let started = Instant::now();
        let body = [7u8; 48];
        for number in 0..POSTED {
            producer.post(Opcode::Copy, NO_CALL, number, &[&body], &mut || true).expect("posted");
        }
        ping(&mut producer);
        let seconds = started.elapsed().as_secs_f64();
        println!("posted 64-byte commands: {:.2} M/s", f64::from(POSTED) / seconds / 1e6);
        drop(ours);
        child.wait().expect("the other process ends");
    }

    fn executor() {
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input");
        let socket = Connection::from_socket(stdin).expect("a socket");
        let received = socket.receive::<()>(SOON).expect("the session file");
        let memory =
            Arc::new(SessionMemory::map(received.descriptors[0].as_fd()).expect("its mapping"));
        let mut consumer = Consumer::new(Arc::clone(&memory));
        while !socket.is_closed() {
            while let Some(command) = consumer.take().expect("well-formed commands") {
                let slot = command.header.call_slot;
                if slot != NO_CALL {
                    call::answer(&memory, slot, 0, &[]).expect("a waiting caller");
                }
            }
            consumer.wait(Cores::Spare, Duration::from_millis(100), &mut || false);
        }
    }
}
