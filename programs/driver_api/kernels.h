/* PTX of the kernels that several driver-API programs run. */
#pragma once

#define PTX_HEAD ".version 6.0\n.target sm_50\n.address_size 64\n"

/* add(words, by): words[tid] += by */
#define PTX_ADD                                              \
    ".visible .entry add(.param .u64 words, .param .u32 by)\n" \
    "{\n"                                                    \
    "    .reg .b32 %r<4>;\n"                                 \
    "    .reg .b64 %rd<3>;\n"                                \
    "    ld.param.u64 %rd0, [words];\n"                      \
    "    ld.param.u32 %r0, [by];\n"                          \
    "    cvta.to.global.u64 %rd0, %rd0;\n"                   \
    "    mov.u32 %r1, %tid.x;\n"                             \
    "    mul.wide.u32 %rd1, %r1, 4;\n"                       \
    "    add.u64 %rd2, %rd0, %rd1;\n"                        \
    "    ld.global.u32 %r2, [%rd2];\n"                       \
    "    add.u32 %r3, %r2, %r0;\n"                           \
    "    st.global.u32 [%rd2], %r3;\n"                       \
    "    ret;\n"                                             \
    "}\n"

/* mark(marks): marks[smid] = 1 */
#define PTX_MARK                            \
    ".visible .entry mark(.param .u64 marks)\n" \
    "{\n"                                   \
    "    .reg .b32 %r<3>;\n"                \
    "    .reg .b64 %rd<3>;\n"               \
    "    ld.param.u64 %rd0, [marks];\n"     \
    "    cvta.to.global.u64 %rd0, %rd0;\n"  \
    "    mov.u32 %r0, %smid;\n"             \
    "    mul.wide.u32 %rd1, %r0, 4;\n"      \
    "    add.u64 %rd2, %rd0, %rd1;\n"       \
    "    mov.u32 %r1, 1;\n"                 \
    "    st.global.u32 [%rd2], %r1;\n"      \
    "    ret;\n"                            \
    "}\n"
