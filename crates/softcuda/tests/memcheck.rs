//! Checks to the byte (`OPENMPS_SOFT_MEMCHECK=1`): what is just outside an allocation, or freed,
//! faults, and the log says where.

mod support;

use std::process::Command;

use support::{allocate, context, function, launch};

const CHILD: &str = "SOFTCUDA_TEST_MEMCHECK";
const ILLEGAL_ADDRESS: u32 = 700;

/// `byte` and `word` store at an address; thread 5 of block 2 does.
const STORES: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .entry byte(.param .u64 p)
{
    .reg .u32 %r<4>;
    .reg .u64 %d<2>;
    .reg .pred %p<3>;
    ld.param.u64 %d1, [p];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p1, %r1, 2;
    @%p1 bra done;
    setp.ne.u32 %p2, %r2, 5;
    @%p2 bra done;
    mov.u32 %r3, 1;
    st.global.u8 [%d1], %r3;
done:
    ret;
}
.visible .entry word(.param .u64 p)
{
    .reg .u32 %r<2>;
    .reg .u64 %d<2>;
    ld.param.u64 %d1, [p];
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
"#;

/// One kernel at one address in a context of its own; returns what synchronising says.
fn store(name: &str, address_of: impl FnOnce() -> u64) -> (u32, u64) {
    let own = context();
    let kernel = function(STORES, name);
    let address = address_of();
    assert_eq!(launch(kernel, 3, 32, 0, &[address]), 0);
    let code = cu!(cuCtxSynchronize());
    assert_eq!(cu!(cuCtxDestroy_v2(own => usize)), 0);
    (code, address)
}

fn child() {
    assert_eq!(store("byte", || allocate(101) + 100).0, 0, "the last byte");
    let (code, address) = store("byte", || allocate(101) + 101);
    assert_eq!(code, ILLEGAL_ADDRESS, "the first behind it");
    println!("address {address:#x}");
    assert_eq!(store("byte", || allocate(101) - 1).0, ILLEGAL_ADDRESS, "the last before it");
    assert_eq!(store("word", || allocate(102) + 100).0, ILLEGAL_ADDRESS, "half a word");
    let freed = || {
        let address = allocate(64);
        assert_eq!(cu!(cuMemFree_v2(address => u64)), 0);
        address
    };
    assert_eq!(store("byte", freed).0, ILLEGAL_ADDRESS, "freed");
    assert_eq!(store("byte", || allocate(3 << 20) + (3 << 20)).0, ILLEGAL_ADDRESS, "large");
    context();
    let address = allocate(101);
    assert_eq!(cu!(cuMemsetD8_v2(address => u64, 0 => u8, 101 => usize)), 0);
    assert_eq!(cu!(cuMemsetD8_v2(address => u64, 0 => u8, 102 => usize)), 1, "fills, too");
}

#[test]
fn one_byte_outside_is_found_and_named() {
    if std::env::var(CHILD).is_ok() {
        return child();
    }
    let name = "one_byte_outside_is_found_and_named";
    let output = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .env("OPENMPS_SOFT_MEMCHECK", "1")
        .env("OPENMPS_SOFT_LOG", "error")
        .output()
        .expect("runs");
    let (out, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{log}");
    let address = out.lines().find_map(|line| line.split_once("address ")).expect("printed").1;
    let line = log.lines().find(|line| line.contains("softcuda: kernel byte")).expect("logged");
    for part in [address, "block (2,0,0)", "thread (5,0,0)", "ptx line"] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
}
