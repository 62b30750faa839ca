//! The text that a guarded module has more than the one it was made of.

use crate::access::{Access, Size};
use crate::table::{TABLE_WORDS, WIDEST_BYTES};
use std::fmt::Write;

/// What all names begin with that a guarded module has more.
pub const PREFIX: &str = "__openmps_guard_";

/// Names that no other module linked with this one has.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) table: String,
    own: String,
    find: String,
}

/// What the module is written for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dialect {
    pub(crate) version: (u32, u32),
    pub(crate) target: u32,
}

impl Names {
    /// Made of the text itself.
    pub(crate) fn of(text: &str) -> Self {
        // FNV-1a, 64 bits.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let name = |what: &str| format!("{PREFIX}{what}_{hash:016x}");
        Self { table: name("table"), own: name("own"), find: name("find") }
    }

    /// What must stand before the first function.
    pub(crate) fn declarations(&self) -> String {
        let Self { table, find, .. } = self;
        format!("\n.visible .const .align 16 .b64 {table}[{TABLE_WORDS}];\n{};\n", signature(find))
    }

    /// What begins a function that has checks.
    pub(crate) fn prologue(&self) -> String {
        let table = &self.table;
        format!(
            "
\t.reg .pred %guard_q;
\t.reg .b64 %guard_a, %guard_t, %guard_lo, %guard_max;
\tld.const.b64 %guard_lo, [{table}+16];
\tld.const.b64 %guard_max, [{table}+24];
\tsub.s64 %guard_max, %guard_max, {WIDEST_BYTES};
"
        )
    }

    /// What stands before an instruction with that access.
    pub(crate) fn check(
        &self,
        access: &Access<'_>,
        (base, offset): (&str, &str),
        predicate: Option<&str>,
        site: usize,
    ) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_check(&mut text, access, (base, offset), predicate, site);
        text
    }

    fn write_check(
        &self,
        text: &mut String,
        access: &Access<'_>,
        (base, offset): (&str, &str),
        predicate: Option<&str>,
        site: usize,
    ) -> std::fmt::Result {
        let mut passes = String::new();
        if let Some(unless) = access.unless {
            writeln!(passes, "\t@{unless} bra $guard_{site};")?;
        }
        let size = match access.size {
            Size::Bytes(size) => size.to_string(),
            Size::Narrow(operand) | Size::Any(operand) => operand.to_owned(),
        };
        let condition = match (access.size, predicate) {
            (Size::Any(_), Some(predicate)) => {
                writeln!(passes, "\t@{} bra $guard_{site};", negated(predicate))?;
                String::new()
            }
            (Size::Any(_), None) => String::new(),
            (_, Some(predicate)) => format!(
                "\tsetp.gt.and.u64 %guard_q, %guard_t, %guard_max, {predicate};\n\t@!%guard_q bra $guard_{site};\n"
            ),
            (_, None) => format!(
                "\tsetp.gt.u64 %guard_q, %guard_t, %guard_max;\n\t@!%guard_q bra $guard_{site};\n"
            ),
        };
        let find = &self.find;
        write!(
            text,
            "
{passes}\tadd.s64 %guard_a, {base}, {offset};
\tsub.s64 %guard_t, %guard_a, %guard_lo;
{condition}\tcall (%guard_t), {find}, (%guard_a, {size}, {site});
\tld.const.b64 %guard_lo, [%guard_t];
\tld.const.b64 %guard_max, [%guard_t+8];
\tsub.s64 %guard_max, %guard_max, {WIDEST_BYTES};
$guard_{site}:
\t"
        )
    }

    /// What stands behind all else: `own` are the module's variables in global memory, with their
    /// lengths.
    pub(crate) fn finder(&self, dialect: Dialect, own: &[(String, u64)]) -> String {
        let Self { table, own: own_table, find } = self;
        let mut list: Vec<String> =
            own.iter().map(|(name, size)| format!("generic({name}), {size}")).collect();
        if list.is_empty() {
            list.push("0, 0".to_owned());
        }
        let words = 2 * list.len();
        let mut spaces = vec!["shared", "local", "const"];
        if dialect.version >= (7, 7) && dialect.target >= 70 {
            spaces.push("param");
        }
        if dialect.version >= (7, 8) && dialect.target >= 90 {
            spaces.push("shared::cluster");
        }
        let windows: String = spaces
            .iter()
            .map(|space| format!("\tisspacep.{space} %p, %a;\n\t@%p bra $guard_fine;\n"))
            .collect();
        let search = |label: &str| {
            format!(
                "$guard_{label}:
\tsetp.eq.u32 %p, %n, 0;
\t@%p bra $guard_{label}_end;
\tld.const.b64 %base, [%at];
\tld.const.b64 %len, [%at+8];
\tadd.s64 %at, %at, 16;
\tsub.s32 %n, %n, 1;
\tsub.s64 %t, %a, %base;
\tsetp.ge.u64 %p, %t, %len;
\t@%p bra $guard_{label};
\tsub.s64 %t, %len, %t;
\tsetp.lt.u64 %p, %t, %wide;
\t@%p bra $guard_{label};
\tbra $guard_found;
$guard_{label}_end:
"
            )
        };
        format!(
            "
.const .align 16 .u64 {own_table}[{words}] = {{{}}};
{}
{{
\t.reg .pred %p;
\t.reg .b32 %n, %old, %x;
\t.reg .b64 %at, %base, %len, %t, %wide, %page;
\tcvt.u64.u32 %wide, %size;
\tsetp.eq.u64 %p, %wide, 0;
\t@%p bra $guard_fine;
{windows}\tld.const.b32 %n, [{table}];
\tmov.u64 %at, {table};
\tadd.s64 %at, %at, 32;
{}\tmov.u32 %n, {};
\tmov.u64 %at, {own_table};
{}\tld.const.b64 %page, [{table}+8];
\tatom.global.cas.b32 %old, [%page], 0, 1;
\tsetp.ne.u32 %p, %old, 0;
\t@%p bra $guard_gone;
\tld.const.b32 %x, [{table}+4];
\tst.global.b32 [%page+4], %x;
\tst.global.b64 [%page+8], %a;
\tst.global.b32 [%page+16], %site;
\tst.global.b32 [%page+20], %size;
\tmov.u32 %x, %ctaid.x;
\tst.global.b32 [%page+24], %x;
\tmov.u32 %x, %ctaid.y;
\tst.global.b32 [%page+28], %x;
\tmov.u32 %x, %ctaid.z;
\tst.global.b32 [%page+32], %x;
\tmov.u32 %x, %tid.x;
\tst.global.b32 [%page+36], %x;
\tmov.u32 %x, %tid.y;
\tst.global.b32 [%page+40], %x;
\tmov.u32 %x, %tid.z;
\tst.global.b32 [%page+44], %x;
\tmembar.sys;
\tmov.u32 %x, 2;
\tst.volatile.global.b32 [%page], %x;
\tmembar.sys;
$guard_gone:
\texit;
$guard_found:
\tsetp.lt.u64 %p, %len, {WIDEST_BYTES};
\t@%p bra $guard_fine;
\tsub.s64 %range, %at, 16;
\tret;
$guard_fine:
\tmov.u64 %range, {table};
\tadd.s64 %range, %range, 16;
\tret;
}}
",
            list.join(", "),
            signature(find),
            search("range"),
            own.len(),
            search("own"),
        )
    }
}

fn signature(find: &str) -> String {
    format!(".func (.reg .b64 %range) {find} (.reg .b64 %a, .reg .b32 %size, .reg .b32 %site)")
}

/// The opposite of a predicate.
fn negated(predicate: &str) -> String {
    match predicate.strip_prefix('!') {
        Some(name) => name.trim().to_owned(),
        None => format!("!{predicate}"),
    }
}
