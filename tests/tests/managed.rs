//! Managed memory, of real programs (`programs/process/managed.c`): it is device memory under
//! OpenMPS, and the host and kernels see of it what they see natively.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;

fn start(sandbox: &Sandbox, runtime: Runtime) -> Result<Puppet> {
    let program = sandbox.installation.program("process", "managed");
    Puppet::spawn(&mut sandbox.command(program, runtime))
}

/// Device memory that a program has of the server.
fn granted_bytes(daemon: &Daemon, puppet: &Puppet) -> Result<u64> {
    let clients = daemon.snapshot()?.clients;
    let own = clients.iter().find(|client| client.pid == puppet.pid());
    Ok(own.context("the program is not attached")?.granted_bytes)
}

/// Natively and under OpenMPS, where the program's managed memory is device memory meanwhile.
fn alike(orders: &[&str]) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut native = start(&sandbox, Runtime::Softcuda)?;
    for order in orders {
        native.must(order).with_context(|| format!("natively: {order}"))?;
    }
    native.dismiss()?;
    let daemon = Daemon::start(sandbox)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    client.must("take 40")?;
    let before = granted_bytes(&daemon, &client)?;
    ensure!(before >= 40 * MIB, "{before} bytes are on the device");
    for order in orders {
        client.must(order).with_context(|| format!("under OpenMPS: {order}"))?;
    }
    client.must("look")?;
    client.dismiss()
}

#[test]
fn the_host_and_kernels_work_in_turns() -> Result<()> {
    alike(&["add", "stencil", "copies", "again"])
}

#[test]
fn system_calls_reach_what_the_device_has() -> Result<()> {
    alike(&["calls"])
}

#[test]
fn threads_touch_the_same_blocks() -> Result<()> {
    alike(&["threads"])
}

#[test]
fn a_handler_of_the_programs_own_hears_of_its_own_faults_alone() -> Result<()> {
    alike(&["handler"])
}

#[test]
fn the_host_writes_beside_a_kernel_that_runs() -> Result<()> {
    alike(&["beside"])
}

#[test]
fn what_only_the_host_uses_stays_with_it() -> Result<()> {
    alike(&["attached"])
}

#[test]
fn what_was_prefetched_to_the_host_is_there() -> Result<()> {
    alike(&["prefetched"])
}

#[test]
fn locked_memory_goes_to_and_fro_too() -> Result<()> {
    alike(&["locked"])
}

/// A program at rest, whose executor is killed: with what the host has looked at, and written.
#[test]
fn it_survives_its_executor() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    for orders in [["take 3", "look"], ["take 5", "write"]] {
        for order in orders {
            client.must(order)?;
        }
        let executor = daemon.snapshot()?.devices[0].executor_pid;
        kill_process(Pid::from_raw(executor as i32).context("no executor")?, Signal::KILL)?;
        wait::until("another executor is there", PATIENCE, || {
            daemon.snapshot().is_ok_and(|it| {
                let now = it.devices[0].executor_pid;
                now != 0 && now != executor
            })
        })?;
        for order in ["look", "add", "look"] {
            client.must(order).with_context(|| daemon.sandbox().last_log_lines())?;
        }
    }
    client.dismiss()
}

/// Two programs that do not fit on the device together take turns with all that they have.
#[test]
fn it_rests_in_the_host_while_others_need_the_room() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let machine = sandbox.log_directory().join("machine").display().to_string();
    let variables = [
        ("OPENMPS_MEMORY_POLICY", "spill"),
        ("OPENMPS_SOFT_MACHINE", machine.as_str()),
        ("OPENMPS_SOFT_MEMORY_MIB", "192"),
    ];
    let daemon = Daemon::start_with(sandbox, &variables)?;
    let mut one = start(daemon.sandbox(), Runtime::OpenMps)?;
    let mut two = start(daemon.sandbox(), Runtime::OpenMps)?;
    one.must("take 110")?;
    two.must("take 110")?;
    for _ in 0..2 {
        for client in [&mut one, &mut two] {
            for order in ["look", "write", "add", "look"] {
                client.must(order)?;
            }
        }
    }
    one.dismiss()?;
    two.dismiss()
}

#[test]
fn it_goes_to_another_gpu_with_its_program() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_DEVICES", "2")])?;
    let sandbox = daemon.sandbox();
    let mut client = start(sandbox, Runtime::OpenMps)?;
    client.must("take 8")?;
    client.must("look")?;
    for to in ["1", "0"] {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let pid = client.pid().to_string();
        command.args(["move", "--pid", &pid, "--to", to]);
        let said = process::run(&mut command, PATIENCE)?;
        said.success().with_context(|| sandbox.last_log_lines())?;
        for order in ["look", "write", "add", "look"] {
            client.must(order)?;
        }
    }
    client.dismiss()
}

#[test]
fn a_variable_that_a_running_kernel_writes_is_seen_after_it() -> Result<()> {
    alike(&["variable", "variable"])
}

#[test]
fn who_has_waited_sees_its_own_variable_beside_others_who_wait() -> Result<()> {
    alike(&["waiters"])
}

#[test]
fn an_event_of_processes_that_is_reached_has_variables_seen() -> Result<()> {
    alike(&["shared event"])
}

#[test]
fn pages_that_a_program_throws_away_hold_nobody_up() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    for order in ["take 1", "thrown away", "add", "look"] {
        client.must(order)?;
    }
    client.dismiss()
}

#[test]
fn who_has_all_memory_that_it_may_have_goes_on_with_managed_memory() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    // Memory is given in pieces of 2 MiB: with one of these nothing is left for a stream.
    for limit_kib in (0..4).map(|step| (64 << 10) + step * 512) {
        let program = sandbox.installation.program("process", "managed");
        let mut command = sandbox.command(program, Runtime::OpenMps);
        command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={limit_kib}K"));
        let mut client = Puppet::spawn(&mut command)?;
        client.must("full").with_context(|| format!("with {limit_kib} KiB"))?;
        client.dismiss()?;
    }
    Ok(())
}

#[test]
fn a_child_does_not_have_its_parents_managed_memory() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut native = start(&sandbox, Runtime::Softcuda)?;
    native.must("fork")?;
    native.dismiss()?;
    let daemon = Daemon::start(sandbox)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    client.must("fork gone")?;
    client.dismiss()
}

#[test]
fn hints_are_told_again() -> Result<()> {
    alike(&["hint"])
}

/// Sequences of everything that can be done with it, by two threads with a stream each, against a
/// model. `OPENMPS_MANAGED_SEQUENCES` says how many; some hold in a second.
#[test]
fn random_sequences_lose_no_word() -> Result<()> {
    let sequences = match std::env::var("OPENMPS_MANAGED_SEQUENCES") {
        Ok(text) => text.parse().context("OPENMPS_MANAGED_SEQUENCES")?,
        Err(_) => 30_u32,
    };
    let sandbox = Sandbox::new()?;
    let mut native = start(&sandbox, Runtime::Softcuda)?;
    native.must("random 1 200")?;
    native.dismiss()?;
    let daemon = Daemon::start(sandbox)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    client.must("take 3")?;
    let before = granted_bytes(&daemon, &client)?;
    ensure!(before >= 3 * MIB, "{before} bytes are on the device");
    for seed in 0..sequences {
        client.must(&format!("random {seed} 60"))?;
    }
    client.must("look")?;
    client.dismiss()
}

/// A user, where those of several are told apart.
const USER: u32 = 20001;

/// Device memory of a program of that user, which took 8 MiB of managed memory.
fn of_a_user(setting: &str, orders: &[&str]) -> Result<u64> {
    let variables = [("OPENMPS_PROVISIONING", "concurrent"), ("OPENMPS_MANAGED_FAULTS", setting)];
    let daemon = Daemon::start_with(Sandbox::of_several_users()?, &variables)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "managed");
    let mut client = Puppet::spawn(&mut sandbox.command_as(USER, program, Runtime::OpenMps))?;
    client.must("take 8")?;
    let granted = granted_bytes(&daemon, &client)?;
    for order in orders {
        client.must(order)?;
    }
    client.dismiss()?;
    Ok(granted)
}

#[test]
fn other_users_have_it_on_the_device_where_the_daemon_is_told_so() -> Result<()> {
    let on = of_a_user("on", &["calls", "handler", "look"])?;
    ensure!(on >= 8 * MIB, "{on} bytes are on the device");
    let off = of_a_user("off", &["calls", "beside", "look"])?;
    ensure!(off < 8 * MIB, "{off} bytes are on the device");
    Ok(())
}

/// Of the device's memory and of a client's limit, what is there is used, and host memory beyond.
#[test]
fn more_than_there_is_works() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let machine = sandbox.log_directory().join("machine").display().to_string();
    let variables = [("OPENMPS_SOFT_MACHINE", machine.as_str()), ("OPENMPS_SOFT_MEMORY_MIB", "96")];
    let daemon = Daemon::start_with(sandbox, &variables)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    for _ in 0..4 {
        client.must("take 48")?;
    }
    client.must("take 100")?;
    client.must("look")?;
    let on_device = granted_bytes(&daemon, &client)?;
    ensure!((48 * MIB..=96 * MIB).contains(&on_device), "{on_device} bytes are on the device");
    client.dismiss()
}
