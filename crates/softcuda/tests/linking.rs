//! The linker interface: PTX in, something that loads out.

mod support;

use std::ffi::{c_char, c_void};

use support::{allocate, context, launch, read};

const CALLER: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 result) seven();
.visible .entry store(.param .u64 p)
{
    .reg .u32 %r<2>;
    .reg .u64 %d<2>;
    ld.param.u64 %d1, [p];
    {
    .param .b32 result;
    call.uni (result), seven, ();
    ld.param.b32 %r1, [result];
    }
    st.global.u32 [%d1], %r1;
    ret;
}
"#;

const CALLEE: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .func (.param .b32 result) seven()
{
    .reg .u32 %r<2>;
    mov.u32 %r1, 7;
    st.param.b32 [result], %r1;
    ret;
}
"#;

#[test]
fn two_texts_become_one_module() {
    context();
    let null = std::ptr::null_mut::<c_void>();
    let (mut state, mut image, mut size) = (0usize, null, 0usize);
    assert_eq!(
        cu!(cuLinkCreate_v2(0 => u32, null => *mut c_void, null => *mut c_void, &mut state => *mut usize)),
        0
    );
    for text in [CALLER, CALLEE] {
        let code = cu!(cuLinkAddData_v2(
            state => usize, 1 => u32, text.as_ptr() => *const u8, text.len() => usize, c"text".as_ptr() => *const c_char,
            0 => u32, null => *mut c_void, null => *mut c_void,
        ));
        assert_eq!(code, 0);
    }
    assert_eq!(
        cu!(cuLinkComplete(state => usize, &mut image => *mut *mut c_void, &mut size => *mut usize)),
        0
    );
    assert!(size > CALLER.len() + CALLEE.len());
    let (mut module, mut function) = (0usize, 0usize);
    assert_eq!(cu!(cuModuleLoadData(&mut module => *mut usize, image => *mut c_void)), 0);
    assert_eq!(cu!(cuLinkDestroy(state => usize)), 0);
    let name = c"store".as_ptr();
    assert_eq!(
        cu!(cuModuleGetFunction(&mut function => *mut usize, module => usize, name => *const c_char)),
        0
    );
    let memory = allocate(4);
    assert_eq!(launch(function, 1, 1, 0, &[memory]), 0);
    assert_eq!(read(memory, 1), [7]);
}
