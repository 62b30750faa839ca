//! Kernels that ask for more than there is: a fault, or less than they asked for, never unbounded
//! memory or time.

mod machine;

use machine::{Params, Stop, TestMachine, launch};
use softcuda::exec::{FaultKind, SimdLevel};

fn run(text: &str, block: u32, stack_bytes: u32) -> (TestMachine, Result<u64, Stop>) {
    let machine = TestMachine::new();
    let program = machine
        .load(&format!(".version 8.3 .target sm_90 .address_size 64 {text}"), SimdLevel::detect());
    let kernel = program.kernel("k").expect("the kernel is accepted");
    let output = machine.alloc(4096);
    let mut launch = launch(&kernel, [1, 1, 1], [block, 1, 1], Params::new().push(output));
    launch.stack_bytes = stack_bytes;
    let ended = machine.run(launch, 100_000);
    (machine, ended)
}

/// Each call has 12 KiB of registers for its warp; ten thousand of them in each of 32 diverged
/// lanes would be 4 GiB.
#[test]
fn the_registers_of_recursion_are_bounded() {
    let registers: Vec<String> = (0..100).map(|i| format!("%r{i}")).collect();
    let load: String =
        registers.iter().map(|r| format!("ld.volatile.global.u32 {r}, [%a];")).collect();
    let store: String =
        registers.iter().map(|r| format!("st.volatile.global.u32 [%a], {r};")).collect();
    let text = format!(
        ".func f(.reg .b64 %a) {{ .reg .b32 %r<100>; .reg .b64 %b; {load} add.u64 %b, %a, 0; call f, (%b); {store} ret; }}
        .visible .entry k(.param .u64 output) {{ .reg .b64 %a; ld.param.u64 %a, [output]; call f, (%a); ret; }}"
    );
    let (_, ended) = run(&text, 32, 1 << 20);
    let Err(Stop::Fault(fault)) = ended else { panic!("{ended:?}") };
    assert_eq!(fault.kind, FaultKind::StackOverflow);
    assert!(fault.detail.contains("registers"), "{}", fault.detail);
}

#[test]
fn the_text_of_one_printf_is_bounded() {
    let format: String = "%4096d".repeat(8000);
    let bytes: Vec<String> = format.bytes().chain([0]).map(|byte| byte.to_string()).collect();
    let text = format!(
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .global .b8 message[{}] = {{{}}};
        .visible .entry k(.param .u64 output) {{
        .reg .b64 %d<3>; .param .b64 a; .param .b64 b; .param .b32 r;
        mov.u64 %d1, message; cvta.global.u64 %d1, %d1; st.param.b64 [a], %d1;
        ld.param.u64 %d2, [output]; st.param.b64 [b], %d2;
        call (r), vprintf, (a, b); ret; }}",
        bytes.len(),
        bytes.join(", ")
    );
    let (machine, ended) = run(&text, 1, 1 << 16);
    // Its argument block ends somewhere: a fault is fine, too.
    assert!(matches!(ended, Ok(_) | Err(Stop::Fault(_))), "{ended:?}");
    assert!(machine.console.lock().unwrap().len() <= 300 << 10);
}

#[test]
fn bulk_copies_come_in_units_of_16_bytes() {
    let text = ".visible .entry k(.param .u64 output) {
        .shared .align 16 .b8 space[64]; .reg .b64 %d<2>; .reg .b32 %s;
        ld.param.u64 %d1, [output]; mov.u32 %s, space;
        cp.async.bulk.global.shared::cta.bulk_group [%d1], [%s], 24; ret; }";
    let (_, ended) = run(text, 1, 1 << 16);
    let Err(Stop::Fault(fault)) = ended else { panic!("{ended:?}") };
    assert_eq!(fault.kind, FaultKind::IllegalInstruction);
}
