//! COMPATIBILITY.md: which functions of the driver API each library has, from their lists.

use std::fmt::Write as _;

use crate::classes::{Classes, Route};
use crate::functions::{DefaultStream, FUNCTIONS, Function};
use crate::proofs::Proofs;

/// The text of COMPATIBILITY.md.
pub fn markdown(client: &Classes, software: &Classes, proofs: &Proofs) -> String {
    let mut out = String::from(HEAD);
    out.push_str(
        "| | functions | client runtime | of them proven | software GPU | of them proven |\n",
    );
    out.push_str("|---|---|---|---|---|---|\n");
    for (title, default_stream) in [
        ("functions with all their ABI versions", DefaultStream::Legacy),
        ("per-thread default stream variants", DefaultStream::PerThread),
    ] {
        let of_kind = || FUNCTIONS.iter().filter(|f| f.default_stream == default_stream);
        _ = write!(out, "| {title} | {}", of_kind().count());
        for classes in [client, software] {
            let present = || of_kind().filter(|f| classes.route(f) != Route::Absent);
            let proven = present().filter(|f| !proofs.programs(classes.library(), f).is_empty());
            _ = write!(out, " | {} | {}", present().count(), proven.count());
        }
        out.push_str(" |\n");
    }
    out.push_str("\n## Functions\n\n");
    out.push_str(
        "| function | since CUDA | client runtime | proven by | software GPU | proven by |\n",
    );
    out.push_str("|---|---|---|---|---|---|\n");
    for function in FUNCTIONS.iter().filter(|f| f.default_stream == DefaultStream::Legacy) {
        _ = writeln!(
            out,
            "| `{}` | {}.{} | {} | {} | {} | {} |",
            function.symbol,
            function.since / 1000,
            function.since % 1000 / 10,
            cell(client, function),
            proof(client, function, proofs),
            cell(software, function),
            proof(software, function, proofs)
        );
    }
    out
}

const HEAD: &str = "\
# Compatibility

Written by `cargo xtask compat` from the `functions.tsv` of the two libraries and from `tests/proofs.tsv`; do not edit.

Both libraries export every function of the CUDA 13.0 driver API, with all old ABI versions and
per-thread default stream variants. One that is absent returns `CUDA_ERROR_NOT_SUPPORTED` (801).

In the client runtime, attached to a server, a function is *local* (answered within the process),
*posted* (sent to the server without waiting) or *called* (waits for the server's answer). Where no
daemon runs, every function is the native driver's own. What is said of a function holds for its
per-thread variant (`_ptsz`, `_ptds`), too.

*Proven by* names programs that check their results and in which the function returned `CUDA_SUCCESS`: in the client
runtime attached to a server, in the software GPU natively. `cargo xtask test` runs them all, records what they
call, and fails when one does not call any more what is said here. `cuda/`, `driver_api/`, `kernels/` and `cudarc` are in
[programs](programs); `cupy/` and `numba/` are modules of those libraries' own tests ([tests/suites](tests/suites));
`softcuda/tests/` are the software GPU's own, and `executor` is the server's, under all these programs. A function that no
program proves has the reason.

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

/// What proves a function that is there.
fn proof(classes: &Classes, function: &Function, proofs: &Proofs) -> String {
    let programs = proofs.programs(classes.library(), function);
    match (classes.route(function), proofs.reason(classes.library(), function)) {
        (Route::Absent, _) => String::new(),
        (_, Some(reason)) => format!("none: {}", reason.replace('|', "\\|")),
        (_, None) if programs.is_empty() => "none".to_owned(),
        (_, None) => programs.join(", "),
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
        let proofs = "client\tcuInit\tcuda/a b\nsoftcuda\tcuInit\tcuda/a\n";
        let proofs = Proofs::parse(proofs, "client\tcuLaunchKernel\ttoo dear\n").unwrap();
        let text = markdown(&client, &software, &proofs);
        for row in [
            "| `cuInit` | 2.0 | called | cuda/a, b | implemented | cuda/a |",
            "| `cuLaunchKernel` | 4.0 | posted; no a\\|b | none: too dear | absent |  |",
            "| `cuMemcpy` | 4.0 | called | none | absent |  |",
            "| `cuMemAlloc_v2` | 3.2 | absent |  | absent |  |",
        ] {
            assert!(text.contains(row), "{row} is not in\n{text}");
        }
        let rows = text.lines().filter(|line| line.starts_with("| `cu")).count();
        let legacy = FUNCTIONS.iter().filter(|f| f.default_stream == DefaultStream::Legacy);
        assert_eq!(rows, legacy.count());
        assert!(
            text.contains("| per-thread default stream variants | 99 | 2 | 0 | 0 | 0 |"),
            "{text}"
        );
    }
}
