//! `wmma` and `mma`: whole products of numbers whose sums are exact; those of `.f64` are chains of
//! fused operations.

use crate::case::{Case, Slot, exactly};
use crate::exact::{BF16, F16, F32, Format, Rounding, Value};
use crate::form::Form;
use crate::operands::mix;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    match form.name {
        "wmma" => Some(fragments(form)),
        "mma" => Some(registers(form)),
        _ => None,
    }
}

/// A product of one kind.
struct Product {
    /// Extents m, n, k.
    shape: [usize; 3],
    multiplicand: &'static str,
    accumulator: &'static str,
}

impl Product {
    fn of(form: &Form<'_>) -> Self {
        let multiplicand = form
            .one_of(&["bf16", "tf32", "u8", "f64", "f16"])
            .or_else(|| form.has("m16n16k8").then_some("tf32"))
            .or_else(|| form.has("s32").then_some("u8"))
            .unwrap_or("f16");
        let shape = match (form.name, multiplicand) {
            ("mma", "f16") => [16, 8, 16],
            ("mma", _) => [16, 8, 8],
            (_, "tf32") => [16, 16, 8],
            (_, "f64") => [8, 8, 4],
            _ => [16, 16, 16],
        };
        let accumulator = match multiplicand {
            "u8" => "s32",
            "f64" => "f64",
            _ => "f32",
        };
        Self { shape, multiplicand, accumulator }
    }

    /// Element `row`, `column` of matrix 0 (A), 1 (B) or 2 (C): an integer, or anything for `.f64`.
    fn element(&self, matrix: u64, row: usize, column: usize) -> f64 {
        let r = mix(matrix << 32 | (row * 100 + column) as u64);
        match (self.multiplicand, matrix) {
            ("f64", _) => {
                f64::from_bits(r >> 12 | 0x3ff << 52) * if r & 1 == 0 { 1.0 } else { -1.0 }
            }
            (_, 2) => (r % 129) as f64 - 64.0,
            ("u8", _) => (r & 255) as f64,
            _ => (r % 17) as f64 - 8.0,
        }
    }

    fn result(&self, row: usize, column: usize) -> f64 {
        (0..self.shape[2]).fold(self.element(2, row, column), |sum, k| {
            self.element(0, row, k).mul_add(self.element(1, k, column), sum)
        })
    }

    /// Bytes of an element of type `ty`.
    fn size(ty: &str) -> usize {
        match ty {
            "u8" => 1,
            "f16" | "bf16" => 2,
            "f64" => 8,
            _ => 4,
        }
    }

    /// A number's bits in `ty`.
    fn bits(ty: &str, number: f64) -> u64 {
        let value = Value::decode(number.to_bits(), Format::of("f64"));
        let float = |format| value.encode(format, Rounding::NearestEven).expect("a number");
        match ty {
            "u8" | "s32" => number as i64 as u64 & 0xffff_ffff,
            "f16" => float(F16),
            "bf16" => float(BF16),
            "f64" => number.to_bits(),
            _ => float(F32),
        }
    }
}

/// Bytes that a matrix in memory has at most.
const MATRIX: usize = 2048;
/// Elements between the end of a line and the next.
const GAP: usize = 16;

/// A matrix of `lines` of `along` elements as it lies in memory, in bytes of `fill` where there are
/// none.
fn stored(
    ty: &str,
    fill: u8,
    [lines, along]: [usize; 2],
    at: impl Fn(usize, usize) -> f64,
) -> Vec<u8> {
    let size = Product::size(ty);
    let mut bytes = vec![fill; MATRIX];
    for line in 0..lines {
        for place in 0..along {
            let start = (line * (along + GAP) + place) * size;
            let bits = Product::bits(ty, at(line, place)).to_le_bytes();
            bytes[start..start + size].copy_from_slice(&bits[..size]);
        }
    }
    bytes
}

/// Loads of three fragments, the product, a store: one of them is the form under test.
fn fragments(form: &Form<'_>) -> Case {
    let product = Product::of(form);
    let [m, n, k] = product.shape;
    let (ty, sums) = (product.multiplicand, product.accumulator);
    let shape = format!("m{m}n{n}k{k}");
    let by_column = form.has("store") && form.has("col");
    let store_order = if by_column { "col" } else { "row" };
    let multiply = match ty {
        "f16" => "f32.f32".to_owned(),
        "f64" => "f64.f64.f64.f64.rn".to_owned(),
        _ => format!("{sums}.{ty}.{ty}.{sums}"),
    };
    let usual = [
        format!("wmma.load.a.sync.aligned.row.{shape}.{ty}"),
        format!("wmma.load.b.sync.aligned.col.{shape}.{ty}"),
        format!("wmma.load.c.sync.aligned.row.{shape}.{sums}"),
        format!("wmma.mma.sync.aligned.row.col.{shape}.{multiply}"),
        format!("wmma.store.d.sync.aligned.{store_order}.{shape}.{sums}"),
    ];
    let tested = match (form.has("load"), form.modifiers.get(1)) {
        (true, Some(&"a")) => 0,
        (true, Some(&"b")) => 1,
        (true, _) => 2,
        _ if form.has("store") => 4,
        _ => 3,
    };
    let name = |index: usize| if index == tested { form.text } else { usual[index].as_str() };
    let place = |index: usize, usual: &str| match (index == tested, form.has("shared")) {
        (true, true) => "%q0".to_owned(),
        _ => usual.to_owned(),
    };
    // Registers: A from 0 on, B from 8, C from 16, D from 24.
    let (a, c) = match ty {
        "f16" => (8, 8),
        "u8" => (2, 8),
        "f64" => (1, 2),
        _ => (4, 8),
    };
    let list = |first: usize, count: usize, ty: &str| {
        let class = match ty {
            "f64" => 'e',
            "f32" => 'f',
            _ => 'r',
        };
        let names: Vec<String> = (first..first + count).map(|n| format!("%{class}{n}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let (fa, fb) = (list(0, a, ty), list(8, a, ty));
    let (fc, fd) = (list(16, c, sums), list(24, c, sums));
    let store_stride = if by_column { m } else { n } + GAP;
    let body = format!(
        "{} {fa}, [{}], {};\n{} {fb}, [{}], {};\n{} {fc}, [{}], {};\n{} {fd}, {fa}, {fb}, {fc};\n\
         {} [{}], {fd}, {store_stride};\n",
        name(0),
        place(0, "%in"),
        k + GAP,
        name(1),
        place(1, "%a1"),
        k + GAP,
        name(2),
        place(2, "%a2"),
        n + GAP,
        name(3),
        name(4),
        place(4, "%out"),
    );
    let mut case = Case::bare(32, body);
    case.declarations = format!(".shared .align 128 .b8 sm[{MATRIX}];");
    case.setup = format!(
        "add.s64 %a1, %in, {MATRIX};\nadd.s64 %a2, %in, {};\nmov.b32 %q0, sm;\n\
         mul.wide.u32 %a3, %t, 8;\nmad.lo.u32 %q1, %t, 8, %q0;\nadd.s64 %a5, %out, %a3;\n",
        2 * MATRIX
    );
    // Shared memory starts and ends as the matrix that the form under test reads or writes.
    let source = ["%in", "%a1", "%a2", "%in", "%out"][tested];
    case.setup += &format!("add.s64 %a4, {source}, %a3;\n");
    for step in 0..MATRIX / 256 {
        case.setup +=
            &format!("ld.global.b64 %d1, [%a4+{0}];\nst.shared.b64 [%q1+{0}], %d1;\n", step * 256);
        if tested == 4 && form.has("shared") {
            case.finish += &format!(
                "ld.shared.b64 %d1, [%q1+{0}];\nst.global.b64 [%a5+{0}], %d1;\n",
                step * 256
            );
        }
    }
    case.setup += "bar.warp.sync -1;\n";
    case.finish = format!("bar.warp.sync -1;\n{}", case.finish);
    let mut input = stored(ty, 0x11, [m, k], |row, at| product.element(0, row, at));
    input.extend(stored(ty, 0x11, [n, k], |column, at| product.element(1, at, column)));
    input.extend(stored(sums, 0x11, [m, n], |row, column| product.element(2, row, column)));
    let extents = if by_column { [n, m] } else { [m, n] };
    let result = stored(sums, 0xee, extents, |line, at| {
        if by_column { product.result(at, line) } else { product.result(line, at) }
    });
    case.input = input;
    case.output = vec![0xee; MATRIX];
    case.expected = Ok(exactly(&result));
    case
}

/// `mma`: registers as the ISA's figures lay matrices out over lanes.
fn registers(form: &Form<'_>) -> Case {
    let product = Product::of(form);
    let halves = product.multiplicand == "f16";
    let bits = |matrix, row, column| {
        Product::bits(product.multiplicand, product.element(matrix, row, column))
    };
    let (mut input, mut expected) = (Vec::new(), Vec::new());
    for lane in 0..32 {
        let (group, place) = (lane / 4, lane % 4);
        // Element `index` of the lane's part of an accumulator.
        let sum_at = |index: usize| (group + 8 * (index / 2), place * 2 + index % 2);
        for n in 0..4 {
            let (row, half) = (group + 8 * (n % 2), n / 2);
            input.push(if halves {
                let column = place * 2 + 8 * half;
                bits(0, row, column) | bits(0, row, column + 1) << 16
            } else {
                bits(0, row, place + 4 * half)
            });
        }
        for half in 0..2 {
            input.push(if halves {
                let row = place * 2 + 8 * half;
                bits(1, row, group) | bits(1, row + 1, group) << 16
            } else {
                bits(1, place + 4 * half, group)
            });
        }
        for index in 0..4 {
            let (row, column) = sum_at(index);
            input.push(Product::bits("f32", product.element(2, row, column)));
            expected.push(Slot::Bits(Product::bits("f32", product.result(row, column))));
        }
    }
    let body = format!(
        "{} {{%f20, %f21, %f22, %f23}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%f1, %f2, %f3, %f4}};",
        form.text
    );
    let mut case = Case::bare(32, body);
    case.setup = "mad.wide.u32 %in, %t, 80, %in;\nmad.wide.u32 %out, %t, 32, %out;\n".to_owned();
    for n in 0..6 {
        case.setup += &format!("ld.global.b32 %r{}, [%in+{}];\n", n + 1, n * 8);
    }
    for n in 0..4 {
        case.setup += &format!(
            "ld.global.f32 %f{}, [%in+{}];\nmov.f32 %f2{n}, 0f7F800000;\n",
            n + 1,
            (6 + n) * 8
        );
        case.finish += &format!("st.global.f32 [%out+{}], %f2{n};\n", n * 8);
    }
    case.input = crate::case::words(&input);
    case.output = vec![0; expected.len() * 8];
    case.expected = Ok(expected);
    case
}
