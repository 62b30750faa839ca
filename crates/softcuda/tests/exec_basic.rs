//! nvcc's PTX of everyday kernels, executed at every vector level and compared with the host.

mod machine;

use machine::{Params, Stop, TestMachine, launch, levels};
use softcuda::exec::{FaultKind, SimdLevel};

const PTX: &str = include_str!("kernels/basic.ptx");
const FUEL: u64 = 10_000;

fn each_level(test: impl Fn(&TestMachine, SimdLevel)) {
    for level in levels() {
        test(&TestMachine::new(), level);
    }
}

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 101) as f32 * 0.25 - 9.0).collect()
}

#[test]
fn vector_add_matches_the_host() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let n = 5000;
        let (a, b) = (floats(n), floats(n + 3)[3..].to_vec());
        let (pa, pb, pc) = (m.upload(&a), m.upload(&b), m.alloc(n * 4));
        let kernel = program.kernel("vector_add").unwrap();
        let params = Params::new().push(pa).push(pb).push(pc).push(n as i32);
        m.run(launch(&kernel, [(n as u32).div_ceil(192), 1, 1], [192, 1, 1], params), FUEL)
            .unwrap();
        let expected: Vec<f32> = (0..n).map(|i| b[i].mul_add((i % 4 + 1) as f32, a[i])).collect();
        assert_eq!(m.read::<f32>(pc, n), expected);
    });
}

#[test]
fn tiled_matmul_matches_the_host() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let n = 64;
        let (a, b) = (floats(n * n), floats(n * n));
        let (pa, pb, pc) = (m.upload(&a), m.upload(&b), m.alloc(n * n * 4));
        let kernel = program.kernel("matmul").unwrap();
        let params = Params::new().push(pa).push(pb).push(pc).push(n as i32);
        m.run(launch(&kernel, [4, 4, 1], [16, 16, 1], params), 100).unwrap();
        let mut expected = vec![0f32; n * n];
        for y in 0..n {
            for x in 0..n {
                expected[y * n + x] =
                    (0..n).fold(0.0, |sum, k| a[y * n + k].mul_add(b[k * n + x], sum));
            }
        }
        assert_eq!(m.read::<f32>(pc, n * n), expected);
    });
}

#[test]
fn shuffles_and_atomics_reduce() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let n = 10_000;
        let a: Vec<f32> = (0..n).map(|i| (i % 17) as f32).collect();
        let (pa, out) = (m.upload(&a), m.upload(&[0f32]));
        let kernel = program.kernel("reduce").unwrap();
        let params = Params::new().push(pa).push(out).push(n);
        m.run(launch(&kernel, [7, 1, 1], [256, 1, 1], params), FUEL).unwrap();
        // Small integers: every order of summation is exact.
        assert_eq!(m.read::<f32>(out, 1)[0], a.iter().sum::<f32>());
    });
}

#[test]
fn shared_atomics_count() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let data: Vec<u8> =
            (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let (pd, bins) = (m.upload(&data), m.alloc(1024));
        let kernel = program.kernel("histogram").unwrap();
        let params = Params::new().push(pd).push(bins).push(data.len() as i32);
        m.run(launch(&kernel, [5, 1, 1], [128, 1, 1], params), FUEL).unwrap();
        let mut expected = vec![0u32; 256];
        for &byte in &data {
            expected[byte as usize] += 1;
        }
        assert_eq!(m.read::<u32>(bins, 256), expected);
    });
}

#[test]
fn transpose_through_padded_shared_memory() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let n = 96usize;
        let a: Vec<f64> = (0..n * n).map(|i| i as f64 * 0.5).collect();
        let (pa, out) = (m.upload(&a), m.alloc(n * n * 8));
        let kernel = program.kernel("transpose").unwrap();
        let params = Params::new().push(pa).push(out).push(n as i32);
        m.run(launch(&kernel, [3, 3, 1], [32, 8, 1], params), FUEL).unwrap();
        let expected: Vec<f64> = (0..n * n).map(|i| a[i % n * n + i / n]).collect();
        assert_eq!(m.read::<f64>(out, n * n), expected);
    });
}

#[test]
fn scan_in_dynamic_shared_memory() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let a: Vec<i32> = (0..300).map(|i| i % 7 - 3).collect();
        let (pa, out) = (m.upload(&a), m.alloc(1200));
        let kernel = program.kernel("scan").unwrap();
        let mut l = launch(&kernel, [1, 1, 1], [300, 1, 1], Params::new().push(pa).push(out));
        l.dynamic_shared_bytes = 1200;
        m.run(l, 64).unwrap();
        let expected: Vec<i32> = a
            .iter()
            .scan(0, |sum, x| {
                *sum += x;
                Some(*sum)
            })
            .collect();
        assert_eq!(m.read::<i32>(out, 300), expected);
    });
}

#[test]
fn recursion_and_relocated_globals() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let out = m.alloc(80);
        let kernel = program.kernel("recursion").unwrap();
        m.run(launch(&kernel, [1, 1, 1], [20, 1, 1], Params::new().push(out)), 100).unwrap();
        let mut expected = vec![0, 1];
        for i in 2..20 {
            expected.push(expected[i - 1] + expected[i - 2]);
        }
        assert_eq!(m.read::<i32>(out, 20), expected);
        let counter = program.globals().iter().position(|g| g.name == "counter").unwrap();
        assert_eq!(program.globals()[counter].size_bytes, 4);
    });
}

#[test]
fn calls_through_a_table_of_pointers() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let out = m.alloc(256);
        let kernel = program.kernel("pointers").unwrap();
        m.run(launch(&kernel, [1, 1, 1], [64, 1, 1], Params::new().push(out)), FUEL).unwrap();
        let expected: Vec<i32> = (0..64).map(|i| if i % 2 == 1 { i * i } else { 2 * i }).collect();
        assert_eq!(m.read::<i32>(out, 64), expected);
    });
}

#[test]
fn printf_formats_like_c() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let kernel = program.kernel("print").unwrap();
        m.run(launch(&kernel, [1, 1, 1], [32, 1, 1], Params::new().push(0u64)), FUEL).unwrap();
        let text = String::from_utf8(m.console.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "thread 0 of block:  0.00 123456789abc z end\nthread 1 of block:  1.50 123456789abc z end\n"
        );
    });
}

#[test]
fn integers_of_64_bits() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let a: Vec<i64> = (0..40).map(|i| (i - 20) * 0x1234_5678_9abc + i * i * i).collect();
        let b: Vec<i64> = (0..40).map(|i| 7 - i * 1_000_003).collect();
        let (pa, pb, out) = (m.upload(&a), m.upload(&b), m.alloc(320));
        let kernel = program.kernel("wide").unwrap();
        m.run(
            launch(&kernel, [1, 1, 1], [40, 1, 1], Params::new().push(pa).push(pb).push(out)),
            FUEL,
        )
        .unwrap();
        let expected: Vec<i64> = a
            .iter()
            .zip(&b)
            .map(|(&a, &b)| {
                let high = ((i128::from(a) * i128::from(b)) >> 64) as i64;
                a.wrapping_mul(b)
                    .wrapping_add(a / b)
                    .wrapping_sub(a % b)
                    .wrapping_add(a >> 3)
                    .wrapping_add(high)
            })
            .collect();
        assert_eq!(m.read::<i64>(out, 40), expected);
    });
}

#[test]
fn locks_between_lanes_make_progress() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        for name in ["lock_in_loop", "lock_then_work"] {
            let (lock, value) = (m.upload(&[0i32]), m.upload(&[0i32]));
            let kernel = program.kernel(name).unwrap();
            m.run(
                launch(&kernel, [2, 1, 1], [64, 1, 1], Params::new().push(lock).push(value)),
                500,
            )
            .unwrap();
            assert_eq!(m.read::<i32>(value, 1), [128], "{name}");
        }
    });
}

#[test]
fn lanes_play_ping_pong() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let turn = m.upload(&[0i32]);
        let kernel = program.kernel("ping_pong").unwrap();
        m.run(launch(&kernel, [1, 1, 1], [2, 1, 1], Params::new().push(turn).push(50i32)), 500)
            .unwrap();
        assert_eq!(m.read::<i32>(turn, 1), [100]);
    });
}

#[test]
fn a_true_deadlock_is_reported_with_positions() {
    let m = TestMachine::new();
    let program = m.load(PTX, SimdLevel::detect());
    let out = m.alloc(128);
    let kernel = program.kernel("deadlock").unwrap();
    match m.run(launch(&kernel, [1, 1, 1], [32, 1, 1], Params::new().push(out)), FUEL) {
        Err(Stop::Deadlock(at)) => {
            assert_eq!(at.iter().map(|w| w.threads).sum::<u32>(), 16);
            assert_eq!(at[0].reason, "barrier 1");
            assert!(PTX.lines().nth(at[0].ptx_line as usize - 1).unwrap().contains("barrier.sync"));
        }
        other => panic!("expected a deadlock, got {other:?}"),
    }
}

#[test]
fn local_arrays_are_private() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let out = m.alloc(256);
        let kernel = program.kernel("local_array").unwrap();
        m.run(launch(&kernel, [1, 1, 1], [64, 1, 1], Params::new().push(out).push(5i32)), FUEL)
            .unwrap();
        let expected: Vec<i32> =
            (0..64).map(|t| (0..5).map(|i| ((i * 7) & 31) * t).sum()).collect();
        assert_eq!(m.read::<i32>(out, 64), expected);
    });
}

#[test]
fn an_overrun_names_address_and_thread() {
    let m = TestMachine::new();
    let program = m.load(PTX, SimdLevel::detect());
    let kernel = program.kernel("overrun").unwrap();
    let out = m.alloc(40);
    match m.run(launch(&kernel, [1, 1, 1], [32, 1, 1], Params::new().push(out)), FUEL) {
        Err(Stop::Fault(fault)) => {
            assert_eq!(fault.kind, FaultKind::IllegalAddress);
            assert_eq!(fault.address, Some(out + 40));
            assert_eq!(fault.position.thread, [10, 0, 0]);
            assert_eq!(fault.function, "overrun");
            assert!(PTX.lines().nth(fault.ptx_line as usize - 1).unwrap().contains("st.global"));
        }
        other => panic!("expected a fault, got {other:?}"),
    }
    match m.run(launch(&kernel, [1, 1, 1], [32, 1, 1], Params::new().push(out - 2)), FUEL) {
        Err(Stop::Fault(fault)) => assert_eq!(fault.kind, FaultKind::MisalignedAddress),
        other => panic!("expected a fault, got {other:?}"),
    }
}

#[test]
fn an_endless_kernel_yields() {
    let m = TestMachine::new();
    let program = m.load(PTX, SimdLevel::detect());
    let flag = m.upload(&[0i32]);
    let kernel = program.kernel("endless").unwrap();
    let result = m.run(launch(&kernel, [1, 1, 1], [64, 1, 1], Params::new().push(flag)), 10);
    assert!(matches!(result, Err(Stop::Endless)), "{result:?}");
}

#[test]
fn structures_by_value() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let out = m.alloc(128);
        let kernel = program.kernel("by_value").unwrap();
        let values: [i32; 12] = std::array::from_fn(|i| i as i32 * 3);
        m.run(launch(&kernel, [1, 1, 1], [32, 1, 1], Params::new().push(values).push(out)), FUEL)
            .unwrap();
        let mut changed = values;
        changed[3] = 100;
        let expected: Vec<i32> = (0..32).map(|t| changed[t % 12] + changed[11 - t % 12]).collect();
        assert_eq!(m.read::<i32>(out, 32), expected);
    });
}

#[test]
fn nbody_is_close_to_the_host() {
    each_level(|m, level| {
        let program = m.load(PTX, level);
        let n = 64;
        let p: Vec<[f32; 4]> =
            (0..n).map(|i| std::array::from_fn(|k| ((i * (k + 3) * 7) % 19) as f32)).collect();
        let (pp, acc) = (m.upload(&p), m.alloc(n * 12));
        let kernel = program.kernel("nbody").unwrap();
        m.run(
            launch(&kernel, [2, 1, 1], [32, 1, 1], Params::new().push(pp).push(acc).push(n as i32)),
            FUEL,
        )
        .unwrap();
        let got = m.read::<[f32; 3]>(acc, n);
        for i in 0..n {
            let mut a = [0f64; 3];
            for q in &p {
                let d: Vec<f64> = (0..3).map(|k| f64::from(q[k] - p[i][k])).collect();
                let r = d.iter().map(|x| x * x).sum::<f64>() + 1e-3;
                let s = f64::from(q[3]) / (r * r.sqrt());
                for k in 0..3 {
                    a[k] += d[k] * s;
                }
            }
            for k in 0..3 {
                assert!(
                    (f64::from(got[i][k]) - a[k]).abs() < 1e-3 * (1.0 + a[k].abs()),
                    "{i} {k} {} {}",
                    got[i][k],
                    a[k]
                );
            }
        }
    });
}
