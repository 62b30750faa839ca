//! Devices that several processes share: memory and compute mode of the whole machine, also when a
//! process is killed. And the virtual clock.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use cuda_abi::types::CUdevResource;
use support::{allocate, launch, stream};

const ROLE: &str = "SOFTCUDA_TEST_ROLE";
const MIB: usize = 1 << 20;

/// Starts this test again as another process with a role, on a machine, and waits until it is
/// ready.
fn start(test: &str, role: &str, machine: &str, more: &[(&str, &str)]) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env("OPENMPS_SOFT_MACHINE", machine)
        .env("OPENMPS_SOFT_MEMORY_MIB", "256")
        .envs(more.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let is_ready = lines.map_while(Result::ok).any(|line| line.ends_with("ready"));
    assert!(is_ready, "{role} failed before it was ready");
    child
}

/// Says that the role has done its part and stays until the parent lets go of it or kills it.
fn stay() {
    println!("ready");
    let mut rest = String::new();
    let _ = std::io::stdin().read_to_string(&mut rest);
    // Nobody reads what the test harness would print.
    std::process::exit(0);
}

/// A kernel that never ends is ended at the configured limit, as a display's watchdog would; the
/// process goes on.
#[test]
fn a_kernel_that_runs_too_long_is_ended() {
    const LAUNCH_TIMEOUT: u32 = 702;
    if std::env::var_os(ROLE).is_some() {
        support::context();
        let spin = support::function(support::PTX, "spin");
        let flag = allocate(4);
        assert_eq!(cu!(cuMemsetD32_v2(flag => u64, 0 => u32, 1 => usize)), 0);
        assert_eq!(launch(spin, 100, 64, stream(), &[flag]), 0);
        assert_eq!(cu!(cuCtxSynchronize()), LAUNCH_TIMEOUT);
        println!("ready");
        // Nobody reads what the test harness would print.
        std::process::exit(0);
    }
    let limit = [("OPENMPS_SOFT_KERNEL_LIMIT_S", "1")];
    let machine = machine("limit");
    let mut child = start("a_kernel_that_runs_too_long_is_ended", "spinner", &machine, &limit);
    assert!(child.wait().expect("is waited for").success());
    std::fs::remove_file(&machine).expect("the machine was there");
}

fn machine(name: &str) -> String {
    let file = format!("softcuda-{name}-{}", std::process::id());
    std::env::temp_dir().join(file).to_str().expect("UTF-8").to_owned()
}

fn create_context() -> (u32, usize) {
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    let mut context = 0usize;
    (cu!(cuCtxCreate_v2(&mut context => *mut usize, 0 => u32, 0 => i32)), context)
}

fn take(size_bytes: usize) -> u32 {
    let mut address = 0u64;
    cu!(cuMemAlloc_v2(&mut address => *mut u64, size_bytes => usize))
}

fn free_mib() -> usize {
    let (mut free, mut total) = (0usize, 0usize);
    assert_eq!(cu!(cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize)), 0);
    assert_eq!(total, 256 * MIB);
    free / MIB
}

#[test]
fn memory_is_the_machine_s_and_comes_back_from_the_killed() {
    let name = "memory_is_the_machine_s_and_comes_back_from_the_killed";
    match std::env::var(ROLE).as_deref() {
        Ok("holder") => {
            assert_eq!(create_context().0, 0);
            assert_eq!(take(160 * MIB), 0);
            return stay();
        }
        Ok("beside") => {
            assert_eq!(create_context().0, 0);
            assert_eq!((free_mib(), take(128 * MIB), take(64 * MIB)), (96, 2, 0));
            return stay();
        }
        Ok(_) => {
            assert_eq!(create_context().0, 0);
            assert_eq!((free_mib(), take(200 * MIB)), (256, 0));
            return stay();
        }
        Err(_) => {}
    }
    let path = machine("memory");
    let mut holder = start(name, "holder", &path, &[]);
    let mut beside = start(name, "beside", &path, &[]);
    for child in [&mut holder, &mut beside] {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
    let mut after = start(name, "after", &path, &[]);
    after.kill().expect("killed");
    after.wait().expect("reaped");
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn an_exclusive_device_has_contexts_of_one_process_at_a_time() {
    let name = "an_exclusive_device_has_contexts_of_one_process_at_a_time";
    match std::env::var(ROLE).as_deref() {
        Ok("first") => {
            assert_eq!((create_context().0, create_context().0), (0, 0), "several of one process");
            return stay();
        }
        Ok("second") => {
            assert_eq!(create_context().0, 46);
            return stay();
        }
        Ok(_) => {
            let (code, context) = create_context();
            assert_eq!(code, 0);
            assert_eq!(cu!(cuCtxDestroy_v2(context => usize)), 0);
            return stay();
        }
        Err(_) => {}
    }
    let path = machine("exclusive");
    let exclusive = [("OPENMPS_SOFT_COMPUTE_MODE", "exclusive_process")];
    let mut first = start(name, "first", &path, &exclusive);
    let mut second = start(name, "second", &path, &exclusive);
    first.kill().expect("killed");
    first.wait().expect("reaped");
    // One that has ended its context leaves the device to others while it lives.
    let mut third = start(name, "third", &path, &exclusive);
    let mut fourth = start(name, "fourth", &path, &exclusive);
    for child in [&mut second, &mut third, &mut fourth] {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
    std::fs::remove_file(path).expect("removed");
}

/// `work` counts its argument down.
const WORK: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .entry work(.param .u64 n)
{
    .reg .u64 %d<2>;
    .reg .pred %p<2>;
    ld.param.u64 %d1, [n];
loop:
    sub.u64 %d1, %d1, 1;
    setp.ne.u64 %p1, %d1, 0;
    @%p1 bra loop;
    ret;
}
"#;

/// Milliseconds that a grid takes in a stream, by events.
fn elapsed_ms(function: usize, stream: usize) -> f32 {
    let (mut begin, mut end, mut elapsed) = (0usize, 0usize, 0f32);
    for event in [&mut begin, &mut end] {
        assert_eq!(cu!(cuEventCreate(event => *mut usize, 0 => u32)), 0);
    }
    assert_eq!(cu!(cuEventRecord(begin => usize, stream => usize)), 0);
    assert_eq!(launch(function, 84 * 8, 32, stream, &[20_000]), 0);
    assert_eq!(cu!(cuEventRecord(end => usize, stream => usize)), 0);
    assert_eq!(cu!(cuEventSynchronize(end => usize)), 0);
    assert_eq!(
        cu!(cuEventElapsedTime_v2(&mut elapsed => *mut f32, begin => usize, end => usize)),
        0
    );
    elapsed
}

#[test]
fn by_the_virtual_clock_a_quarter_of_the_sms_takes_four_times_as_long() {
    let name = "by_the_virtual_clock_a_quarter_of_the_sms_takes_four_times_as_long";
    if std::env::var(ROLE).is_err() {
        let path = machine("clock");
        let mut child = start(name, "clock", &path, &[("OPENMPS_SOFT_CLOCK", "virtual")]);
        drop(child.stdin.take());
        assert!(child.wait().expect("waits").success());
        std::fs::remove_file(path).expect("removed");
        return;
    }
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    let mut context = 0usize;
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context => *mut usize, 0 => i32)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(context => usize)), 0);
    let _memory = allocate(4);
    let work = support::function(WORK, "work");
    let whole = elapsed_ms(work, stream());
    let (mut all, mut parts, mut count) =
        (CUdevResource::default(), [CUdevResource::default(); 1], 1u32);
    let (mut description, mut green, mut quarter) = (0usize, 0usize, 0usize);
    assert_eq!(cu!(cuDeviceGetDevResource(0 => i32, &mut all => *mut CUdevResource, 1 => u32)), 0);
    assert_eq!(
        cu!(cuDevSmResourceSplitByCount(
            parts.as_mut_ptr() => *mut CUdevResource, &mut count => *mut u32, &all => *const CUdevResource,
            std::ptr::null_mut() => *mut CUdevResource, 1 => u32, 20 => u32,
        )),
        0
    );
    assert_eq!(
        cu!(cuDevResourceGenerateDesc(&mut description => *mut usize, parts.as_mut_ptr() => *mut CUdevResource, 1 => u32)),
        0
    );
    assert_eq!(
        cu!(cuGreenCtxCreate(&mut green => *mut usize, description => usize, 0 => i32, 1 => u32)),
        0
    );
    assert_eq!(
        cu!(cuGreenCtxStreamCreate(&mut quarter => *mut usize, green => usize, 1 => u32, 0 => i32)),
        0
    );
    let part = elapsed_ms(work, quarter);
    let ratio = part / whole;
    // 84 SMs against 20; slices make it a little uneven.
    assert!((3.6..4.8).contains(&ratio), "{part} ms against {whole} ms");
    stay();
}
