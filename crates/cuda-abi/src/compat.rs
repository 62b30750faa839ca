//! COMPATIBILITY.md: which functions of the driver API each library has, from their lists.

use std::fmt::Write as _;

use crate::classes::{Classes, Route};
use crate::functions::{DefaultStream, FUNCTIONS, Function};

/// The text of COMPATIBILITY.md.
pub fn markdown(client: &Classes, software: &Classes) -> String {
    let mut out = String::from(HEAD);
    out.push_str("| | functions | client runtime | software GPU |\n|---|---|---|---|\n");
    for (title, default_stream) in [
        ("functions with all their ABI versions", DefaultStream::Legacy),
        ("per-thread default stream variants", DefaultStream::PerThread),
    ] {
        let of_kind = || FUNCTIONS.iter().filter(|f| f.default_stream == default_stream);
        let present =
            |classes: &Classes| of_kind().filter(|f| classes.route(f) != Route::Absent).count();
        _ = writeln!(
            out,
            "| {title} | {} | {} | {} |",
            of_kind().count(),
            present(client),
            present(software)
        );
    }
    out.push_str("\n## Functions\n\n");
    out.push_str("| function | since CUDA | client runtime | software GPU |\n|---|---|---|---|\n");
    for function in FUNCTIONS.iter().filter(|f| f.default_stream == DefaultStream::Legacy) {
        _ = writeln!(
            out,
            "| `{}` | {}.{} | {} | {} |",
            function.symbol,
            function.since / 1000,
            function.since % 1000 / 10,
            cell(client, function),
            cell(software, function)
        );
    }
    out
}

const HEAD: &str = "\
# Compatibility

Written by `cargo xtask compat` from the `functions.tsv` of the two libraries; do not edit.

Both libraries export every function of the CUDA 13.0 driver API, with all old ABI versions and
per-thread default stream variants. One that is absent returns `CUDA_ERROR_NOT_SUPPORTED` (801).

In the client runtime, attached to a server, a function is *local* (answered within the process),
*posted* (sent to the server without waiting) or *called* (waits for the server's answer). Where no
daemon runs, every function is the native driver's own. What is said of a function holds for its
per-thread variant (`_ptsz`, `_ptds`), too.

";

/// What a library says of a function.
fn cell(classes: &Classes, function: &Function) -> String {
    let mut parts = vec![word(classes.route(function)).to_owned()];
    let remark = classes.remark(function);
    if !remark.is_empty() {
        parts.push(remark.replace('|', "\\|"));
    }
    parts.join("; ")
}

fn word(route: Route) -> &'static str {
    match route {
        Route::Own(class) | Route::PerThreadOf(_, class) => class.word(),
        Route::Absent => "absent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Library;

    #[test]
    fn each_function_has_its_row() {
        let client = "cuInit\tcalled\ncuLaunchKernel\tposted\tno a|b\ncuMemcpy\tcalled\n";
        let client = Classes::parse(Library::Client, client).unwrap();
        let software = Classes::parse(Library::Software, "cuInit\timplemented\n").unwrap();
        let text = markdown(&client, &software);
        for row in [
            "| `cuInit` | 2.0 | called | implemented |",
            "| `cuLaunchKernel` | 4.0 | posted; no a\\|b | absent |",
            "| `cuMemcpy` | 4.0 | called | absent |",
            "| `cuMemAlloc_v2` | 3.2 | absent | absent |",
        ] {
            assert!(text.contains(row), "{row} is not in\n{text}");
        }
        let rows = text.lines().filter(|line| line.starts_with("| `cu")).count();
        let legacy = FUNCTIONS.iter().filter(|f| f.default_stream == DefaultStream::Legacy);
        assert_eq!(rows, legacy.count());
        assert!(text.contains("| per-thread default stream variants | 99 | 2 | 0 |"), "{text}");
    }
}
