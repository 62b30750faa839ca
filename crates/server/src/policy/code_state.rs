//! Whether code has variables of its own: then it is like new for its next user only when it is loaded anew.

use cuda_abi::image::Image;

/// Whether an image may have variables: global, constant or managed ones, or references to textures. What cannot be told has some.
pub(crate) fn may_have_variables(image: &[u8]) -> bool {
    match Image::parse(image) {
        Ok(Image::Elf(elf)) => elf.sections().any(|section| {
            section.is_ok_and(|section| {
                section.name.starts_with(b".nv.global")
                    || section.name.starts_with(b".nv.constant3")
            })
        }),
        Ok(Image::Ptx(text)) => text_has_variables(text),
        _ => true,
    }
}

/// Directives that declare variables, outside of functions and their parameters.
const DECLARING: [&[u8]; 5] = [b".global", b".const", b".texref", b".surfref", b".samplerref"];

fn text_has_variables(text: &[u8]) -> bool {
    let (mut depth, mut rest) = (0_i32, text);
    while let Some(&first) = rest.first() {
        let skipped = match first {
            b'/' if rest.starts_with(b"//") => length_to(rest, b"\n"),
            b'/' if rest.starts_with(b"/*") => length_to(rest, b"*/"),
            b'"' => 1 + length_to(&rest[1..], b"\""),
            b'{' | b'(' => {
                depth += 1;
                1
            }
            b'}' | b')' => {
                depth -= 1;
                1
            }
            b'.' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let length = 1 + rest[1..].iter().take_while(|byte| is_part(byte)).count();
                if depth <= 0 && DECLARING.contains(&&rest[..length]) {
                    return true;
                }
                length
            }
            _ => 1,
        };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    false
}

/// Bytes up to the end of what is looked for, or all.
fn length_to(text: &[u8], end: &[u8]) -> usize {
    text.windows(end.len()).position(|window| window == end).map_or(text.len(), |at| at + end.len())
}

#[cfg(test)]
mod tests {
    use super::may_have_variables;

    const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

    fn text(body: &str) -> bool {
        may_have_variables(format!("{HEAD}{body}").as_bytes())
    }

    #[test]
    fn texts_with_kernels_alone_have_none() {
        let kernel = ".visible .entry k(.param .u64 .ptr .global .align 4 p)\n.maxntid 128\n{\n\
                      .shared .align 4 .b8 s[64];\n ld.global.u32 %r1, [%rd1];\n ld.const.u32 %r1, [4];\n}\n";
        assert!(!text(kernel));
        assert!(!text(&format!(
            "// .global .u32 x;\n/* .const .u32 y; */\n.file 1 \"a .global b\"\n{kernel}"
        )));
    }

    #[test]
    fn variables_are_found_wherever_they_are_declared() {
        for variable in [
            ".global .align 4 .u32 x;",
            ".visible .global .align 4 .u32 x;",
            ".const .align 4 .f32 table[4] = {0f00000000};",
            ".global .texref t;",
            ".func f() { ret; }\n.visible .global .attribute(.managed) .u32 m;",
        ] {
            assert!(text(variable), "{variable}");
        }
        assert!(may_have_variables(b"\x01\x02\x03\x04what is this"));
    }
}
