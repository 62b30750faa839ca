//! SAXPY and a stencil through the `cudarc` crate: PTX text, a stream beside the default one,
//! events between them.
//!
//! Prints `cudarc: ok checksum=HEX`, or what differs and exits with 1.

use std::error::Error;

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

const COUNT: usize = 40_000;

const KERNELS: &str = r"
.version 7.0
.target sm_50
.address_size 64

.visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u64 count)
{
    .reg .pred %outside;
    .reg .f32 %f<4>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.f32 %f0, [a];
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [count];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.wide.u32 %rd3, %r0, %r1, 0;
    cvt.u64.u32 %rd4, %r2;
    add.u64 %rd3, %rd3, %rd4;
    setp.ge.u64 %outside, %rd3, %rd2;
    @%outside ret;
    shl.b64 %rd3, %rd3, 2;
    add.u64 %rd5, %rd0, %rd3;
    add.u64 %rd6, %rd1, %rd3;
    ld.global.nc.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    fma.rn.f32 %f3, %f0, %f1, %f2;
    st.global.f32 [%rd6], %f3;
    ret;
}

.visible .entry stencil(.param .u64 from, .param .u64 to, .param .u64 count)
{
    .reg .pred %p<3>;
    .reg .f32 %f<6>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [from];
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [count];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    cvt.u64.u32 %rd3, %r3;
    add.u64 %rd4, %rd3, 1;
    setp.eq.u64 %p0, %rd3, 0;
    setp.ge.u64 %p1, %rd4, %rd2;
    or.pred %p2, %p0, %p1;
    @%p2 bra DONE;
    shl.b64 %rd5, %rd3, 2;
    add.u64 %rd6, %rd0, %rd5;
    add.u64 %rd7, %rd1, %rd5;
    ld.global.f32 %f0, [%rd6+-4];
    ld.global.f32 %f1, [%rd6];
    ld.global.f32 %f2, [%rd6+4];
    add.rn.f32 %f3, %f0, %f2;
    fma.rn.f32 %f4, %f1, 0f40000000, %f3;
    st.global.f32 [%rd7], %f4;
DONE:
    ret;
}
";

fn main() -> Result<(), Box<dyn Error>> {
    let x: Vec<f32> = (0..COUNT).map(|i| (i % 1000) as f32 * 0.5).collect();
    let y: Vec<f32> = (0..COUNT).map(|i| (i % 77) as f32 - 38.0).collect();

    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(KERNELS))?;
    let saxpy = module.load_function("saxpy")?;
    let stencil = module.load_function("stencil")?;
    let first = context.default_stream();
    let second = context.new_stream()?;

    let factor = 3.0f32;
    let device_x = first.clone_htod(&x)?;
    let mut device_y = first.clone_htod(&y)?;
    let config = LaunchConfig::for_num_elems(COUNT as u32);
    let mut launch = first.launch_builder(&saxpy);
    launch.arg(&factor).arg(&device_x).arg(&mut device_y).arg(&COUNT);
    // SAFETY: the kernel takes (f32, pointer, pointer, u64) and stays inside of COUNT elements.
    unsafe { launch.launch(config)? };

    second.join(&first)?;
    let mut smoothed = second.alloc_zeros::<f32>(COUNT)?;
    let mut launch = second.launch_builder(&stencil);
    launch.arg(&device_y).arg(&mut smoothed).arg(&COUNT);
    // SAFETY: the kernel takes (pointer, pointer, u64) and stays inside of COUNT elements.
    unsafe { launch.launch(config)? };
    let result = second.clone_dtoh(&smoothed)?;
    second.synchronize()?;

    let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| factor.mul_add(*x, *y)).collect();
    let mut expected = vec![0.0f32; COUNT];
    for i in 1..COUNT - 1 {
        expected[i] = sums[i].mul_add(2.0, sums[i - 1] + sums[i + 1]);
    }
    if let Some(i) = (0..COUNT).find(|&i| result[i] != expected[i]) {
        eprintln!("element {i} is {}, expected {}", result[i], expected[i]);
        std::process::exit(1);
    }
    let checksum = result
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    println!("cudarc: ok checksum={checksum:016x}");
    Ok(())
}
