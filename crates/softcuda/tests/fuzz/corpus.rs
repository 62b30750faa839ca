//! What mutations start from: the repository's own PTX, random programs, and images made of them.

use random_ptx::{Random, generate, module};

use crate::mutate::Mutator;
use crate::testing;

/// PTX texts: whole ones, and single kernels of the table of forms.
pub(crate) fn texts() -> Vec<Vec<u8>> {
    let forms = include_str!("../kernels/forms.ptx");
    let mut texts: Vec<Vec<u8>> = [
        include_str!("../kernels/basic.ptx"),
        include_str!("../../../../programs/demo/kernels/histogram.ptx"),
        include_str!("../../../../programs/demo/kernels/matrix_product.ptx"),
        include_str!("../../../../programs/demo/kernels/n_body.ptx"),
        include_str!("../../../../programs/demo/kernels/reduction.ptx"),
        DECLARATIONS,
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    let mut parts = forms.split("\n// ");
    let header = parts.next().unwrap_or_default();
    let kernels: Vec<&str> = parts.collect();
    texts.extend(kernels.chunks(8).map(|some| {
        let some: Vec<&str> = some
            .iter()
            .filter_map(|kernel| kernel.split_once('\n'))
            .map(|kernel| kernel.1)
            .collect();
        format!("{header}\n{}", some.join("\n")).into_bytes()
    }));
    for index in 0..20 {
        texts.push(module(&[generate(Random::of_item(1, index))]).into_bytes());
    }
    texts
}

/// Declarations that kernels of compilers have few of.
const DECLARATIONS: &str = r#"
.version 8.4
.target sm_90, texmode_independent
.address_size 64
.file 1 "a.cu"
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 8 .u64 pointers[4] = {table, table+8, generic(table), 5};
.global .align 4 .f32 table[2][3] = {{1.5, 0f3F800000, -2}, {3}};
.const .align 1 .b8 bytes[] = {1, 2, 0xff, 0377};
.weak .global .attribute(.managed) .align 4 .u32 managed;
.global .texref texture; .global .surfref surface; .global .samplerref sampler = { filter_mode = linear };
.global .u32 address = mask(0xff00) table;
.extern .func (.param .b32 r) outside(.param .b64 a, .param .align 8 .b8 b[24]);
.alias twin, original;
.func twin(); .func original() { ret; }
.visible .entry kernel(.param .u64 .ptr .global .align 16 a, .param .align 8 .b8 b[12], .param .f32 c)
.maxntid 256, 1, 1 .minnctapersm 2
{
    .reg .pred %p<3>; .reg .v4 .f32 %v; .reg .b64 %d<5>; .reg .b32 %r<5>;
    .local .align 8 .b8 depot[64];
    .shared .align 4 .u32 block[32];
    .pragma "nounroll";
    .loc 1 2 3
    prototype: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b64 _) .noreturn;
    targets: .branchtargets A, B;
    mov.u32 %r1, block; mov.u64 %d1, depot; cvta.local.u64 %d1, %d1;
    ld.param.u64 %d2, [a+0]; ld.param.v2.u32 {%r2, %r3}, [b+4];
    @%p1 brx.idx %r1, targets;
A:  mov.v4.f32 %v, {0f00000000, 1.0, 2e5, -3}; mov.f32 %r4, %v.x;
    { .param .b32 x; st.param.b32 [x+0], %r1; call.uni (x), %d2, (x, %d1), prototype; }
B:  .section .debug_str { .b8 1, 2, 3 }
    ret;
}
"#;

/// A fatbin of some texts and cubins, or a cubin.
pub(crate) fn image(mutator: &mut Mutator, texts: &[Vec<u8>]) -> Vec<u8> {
    const PTX: u16 = 1;
    const ELF: u16 = 2;
    let sections: &[(&str, &[u8])] = &[
        (".nv.info", &[4, 0x2f, 8, 0, 1, 0, 0, 0, 16, 0, 0, 0]),
        (
            ".nv.info.kernel",
            &[4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x11, 0, 3, 0x19, 8, 0],
        ),
        (".text.kernel", &[0; 64]),
    ];
    if mutator.random.chance(10) {
        return testing::elf(sections);
    }
    let count = 1 + mutator.random.below(3);
    let entries: Vec<_> = (0..count)
        .map(|_| {
            let text = mutator.seed(texts);
            let architecture = mutator.random.pick(&[50, 75, 80, 90, 120, 130]);
            match mutator.random.below(4) {
                0 => testing::plain(PTX, architecture, &text),
                1 => testing::zstd(PTX, architecture, &text),
                2 => testing::lz4(PTX, architecture, &text),
                _ => testing::plain(ELF, architecture, &testing::elf(sections)),
            }
        })
        .collect();
    testing::fatbin(&entries)
}
