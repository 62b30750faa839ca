//! A case: one small kernel around a form, what goes in, and what must come out.
//!
//! Only `body`, and functions that it calls, are broken by mutations; the scaffold around them
//! moves operands in and results out.

use softcuda::exec::{FaultKind, LoadEnv, Program, SimdLevel};

use crate::driver::Object;
use crate::form::{bits_of, register};
use crate::machine::{Params, Stop, TestMachine, launch};

/// Warp instructions of one slice of a block.
const FUEL: u64 = 2000;

/// What `%envreg1` (upper half) and `%envreg2` (lower half) tell: where grids synchronise.
pub(crate) const WORKSPACE: u64 = 0x1234_5678_9abc;

/// One word that must come out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    /// Exactly these bits.
    Bits(u64),
    /// Any NaN of `f16`, `bf16`, `f32` or `f64`.
    Nan(&'static str),
    /// A float of type `ty` within `allowed` of `value`.
    Near { ty: &'static str, value: f64, allowed: f64 },
}

impl Slot {
    fn holds(self, got: u64) -> bool {
        match self {
            Self::Bits(bits) => got == bits,
            Self::Nan("f16") => got & 0x7fff > 0x7c00 && got >> 16 == 0,
            Self::Nan("bf16") => got & 0x7fff > 0x7f80 && got >> 16 == 0,
            Self::Nan("f32") => f32::from_bits(got as u32).is_nan() && got >> 32 == 0,
            Self::Nan(_) => f64::from_bits(got).is_nan(),
            Self::Near { ty, value, allowed } => {
                let got = if ty == "f64" {
                    f64::from_bits(got)
                } else {
                    f64::from(f32::from_bits(got as u32))
                };
                got == value || value.is_finite() && (got - value).abs() <= allowed
            }
        }
    }
}

/// A kernel with its input and what it must do.
pub(crate) struct Case {
    /// At module scope, ahead of the kernel.
    pub(crate) declarations: String,
    /// Ahead of the form.
    pub(crate) setup: String,
    /// The form under test, an instruction a line.
    pub(crate) body: String,
    /// Behind the form.
    pub(crate) finish: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Where `%in` points.
    pub(crate) input: Vec<u8>,
    /// Where `%out` points, as it is before the launch.
    pub(crate) output: Vec<u8>,
    /// Kernel parameter `blob`, up to 256 bytes.
    pub(crate) blob: Vec<u8>,
    /// Words of the output behind the launch, or the fault that ends it.
    pub(crate) expected: Result<Vec<Slot>, FaultKind>,
    /// A texture or surface, whose handle is then in `blob`.
    pub(crate) object: Option<Object>,
    /// A second kernel for the same form.
    pub(crate) next: Option<Box<Case>>,
}

/// How a launch ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Right,
    Wrong(String),
    Refused(String),
}

impl Case {
    /// A case without a scaffold: one block of `threads`.
    pub(crate) fn bare(threads: u32, body: impl Into<String>) -> Self {
        Self {
            declarations: String::new(),
            setup: String::new(),
            body: body.into(),
            finish: String::new(),
            grid: [1, 1, 1],
            block: [threads, 1, 1],
            input: vec![0; 64],
            output: vec![0; 64],
            blob: Vec::new(),
            expected: Ok(Vec::new()),
            object: None,
            next: None,
        }
    }

    /// The PTX, with `change` applied to the functions and the body.
    fn text(&self, change: &dyn Fn(&str) -> String) -> String {
        format!(
            ".version 9.0\n.target sm_120\n.address_size 64\n{}\n\
             .visible .entry k(.param .u64 in, .param .u64 out, .param .align 16 .b8 blob[256]) {{\n\
             .reg .pred %p<40>; .reg .b16 %h<40>; .reg .b32 %r<40>; .reg .f32 %f<40>;\n\
             .reg .b64 %d<40>; .reg .f64 %e<40>; .reg .b32 %q<40>; .reg .b64 %a<40>;\n\
             .reg .b64 %in; .reg .b64 %out; .reg .b32 %t;\n\
             ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nmov.u32 %t, %tid.x;\n\
             {}\n{}\n{}\nret;\n}}\n",
            change(&self.declarations),
            self.setup,
            change(&self.body),
            self.finish
        )
    }

    /// Runs the kernel at one vector level, with `change` applied to the functions and the body.
    pub(crate) fn run(&self, change: &dyn Fn(&str) -> String, level: SimdLevel) -> Outcome {
        let text = self.text(change);
        if let Some(object) = &self.object {
            return crate::driver::run(self, object, &text);
        }
        let machine = TestMachine::new();
        let env = LoadEnv { simd: level, ..LoadEnv::default() };
        if let Err(error) = Program::load(&text, &env) {
            return Outcome::Refused(error.to_string());
        }
        let program = machine.load(&text, level);
        let kernel = match program.kernel("k") {
            Ok(kernel) => kernel,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let (input, output) = (machine.upload(&self.input), machine.upload(&self.output));
        let mut blob = [0u8; 256];
        blob[..self.blob.len()].copy_from_slice(&self.blob);
        let params = Params::new().push(input).push(output).push(blob);
        let mut launch = launch(&kernel, self.grid, self.block, params);
        launch.grid_workspace = WORKSPACE;
        let ended = machine.run(launch, FUEL);
        match (&self.expected, ended) {
            (Ok(expected), Ok(_)) => {
                let got: Vec<u64> = machine.read(output, self.output.len() / 8);
                compare(expected, &got)
            }
            (Err(kind), Err(Stop::Fault(fault))) if fault.kind == *kind => Outcome::Right,
            (_, ended) => Outcome::Wrong(format!("it ended with {ended:?}")),
        }
    }
}

/// Whether the words are the expected ones.
pub(crate) fn compare(expected: &[Slot], got: &[u64]) -> Outcome {
    if expected.is_empty() || expected.len() > got.len() {
        return Outcome::Wrong(format!("{} words expected of {}", expected.len(), got.len()));
    }
    for (index, (slot, &got)) in expected.iter().zip(got).enumerate() {
        if !slot.holds(got) {
            return Outcome::Wrong(format!("word {index}: expected {slot:x?}, got {got:#x}"));
        }
    }
    Outcome::Right
}

/// Values as the bytes of 64-bit words.
pub(crate) fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Bytes as words that must come out.
pub(crate) fn exactly(bytes: &[u8]) -> Vec<Slot> {
    bytes
        .chunks_exact(8)
        .map(|w| Slot::Bits(u64::from_le_bytes(w.try_into().expect("eight bytes"))))
        .collect()
}

/// Instructions that load register `n` of type `ty` from `[base+offset]`.
pub(crate) fn load(ty: &str, n: usize, base: &str, offset: usize) -> String {
    let register = register(ty, n);
    match (ty, bits_of(ty)) {
        ("pred", _) => {
            format!("ld.global.u32 %q{n}, [{base}+{offset}];\nsetp.ne.u32 {register}, %q{n}, 0;\n")
        }
        ("f32" | "f64", _) => format!("ld.global.{ty} {register}, [{base}+{offset}];\n"),
        (_, 8) => format!("ld.global.u8 {register}, [{base}+{offset}];\n"),
        (_, bits) => format!("ld.global.b{bits} {register}, [{base}+{offset}];\n"),
    }
}

/// Instructions that store register `n` of type `ty` to `[base+offset]`.
pub(crate) fn store(ty: &str, n: usize, base: &str, offset: usize) -> String {
    let register = register(ty, n);
    match (ty, bits_of(ty)) {
        ("pred", _) => {
            format!("selp.u32 %q{n}, 1, 0, {register};\nst.global.u32 [{base}+{offset}], %q{n};\n")
        }
        ("f32" | "f64", _) => format!("st.global.{ty} [{base}+{offset}], {register};\n"),
        (_, 8 | 16) => format!("st.global.b16 [{base}+{offset}], {register};\n"),
        (_, bits) => format!("st.global.b{bits} [{base}+{offset}], {register};\n"),
    }
}

/// Sets register `n` of type `ty` to something that no case expects.
pub(crate) fn poison(ty: &str, n: usize) -> String {
    let register = register(ty, n);
    match (ty, bits_of(ty)) {
        // A predicate has no third value: cases make both values come out.
        ("pred", _) => format!("setp.ne.u32 {register}, 0, 1;\n"),
        ("f32", _) => format!("mov.f32 {register}, 0f5A5A5A5B;\n"),
        ("f64", _) => format!("mov.f64 {register}, 0d5A5A5A5B5A5A5A5B;\n"),
        (_, 8 | 16) => format!("mov.b16 {register}, 0x5A5B;\n"),
        (_, 64) => format!("mov.b64 {register}, 0x5A5A5A5B5A5A5A5B;\n"),
        _ => format!("mov.b32 {register}, 0x5A5A5A5B;\n"),
    }
}

/// Register number of the first result; operands count from 1.
pub(crate) const RESULT: usize = 20;

/// A case for a computation: a thread per tuple of operands, registers 1, 2, .. hold them,
/// registers [`RESULT`], .. hold the results.
pub(crate) fn computation(
    operands: &[&str],
    results: &[&str],
    body: String,
    tuples: &[Vec<u64>],
    reference: impl Fn(&[u64]) -> Vec<Slot>,
) -> Case {
    let mut setup = format!(
        "mad.wide.u32 %in, %t, {}, %in;\nmad.wide.u32 %out, %t, {}, %out;\n",
        operands.len() * 8,
        results.len() * 8
    );
    let mut finish = String::new();
    for (index, ty) in operands.iter().enumerate() {
        setup += &load(ty, index + 1, "%in", index * 8);
    }
    for (index, ty) in results.iter().enumerate() {
        setup += &poison(ty, RESULT + index);
        finish += &store(ty, RESULT + index, "%out", index * 8);
    }
    let expected: Vec<Slot> = tuples.iter().flat_map(|tuple| reference(tuple)).collect();
    assert_eq!(expected.len(), tuples.len() * results.len(), "{body}");
    Case {
        setup,
        finish,
        input: words(&tuples.concat()),
        output: vec![0; expected.len() * 8],
        expected: Ok(expected),
        ..Case::bare(tuples.len() as u32, body)
    }
}

/// The usual body: `form d, a, b, ..;`
pub(crate) fn plain_body(form: &str, operands: &[&str], result: &str) -> String {
    let mut list = vec![register(result, RESULT)];
    list.extend(operands.iter().enumerate().map(|(index, ty)| register(ty, index + 1)));
    format!("{form} {};", list.join(", "))
}
