//! The cases by chapter of the instruction set.

mod atomics;
mod barrier;
mod collective;
pub(crate) mod compare;
mod control;
mod convert;
mod float;
mod integer;
mod matrix;
mod memory;
mod moves;
mod params;
mod texture;
mod transfer;

use crate::case::{Case, Slot};
use crate::form::Form;

/// What makes a case for a form of its chapter.
type Maker = fn(&Form<'_>) -> Option<Case>;

/// The chapters, each with the name of the test that runs its cases.
pub(crate) const CHAPTERS: [(&str, Maker); 14] = [
    ("integer", integer::case),
    ("float", float::case),
    ("convert", convert::case),
    ("compare", compare::case),
    ("moves", moves::case),
    ("memory", memory::case),
    ("params", params::case),
    ("atomics", atomics::case),
    ("collective", collective::case),
    ("barrier", barrier::case),
    ("control", control::case),
    ("transfer", transfer::case),
    ("matrix", matrix::case),
    ("texture", texture::case),
];

/// The case of a form and its chapter.
pub(crate) fn find(form: &Form<'_>) -> Option<(&'static str, Case)> {
    CHAPTERS.iter().find_map(|(chapter, make)| Some((*chapter, make(form)?)))
}

/// Why a form that is executed has no result that a test could see, or why a form is not executed.
pub(crate) fn reason(form: &Form<'_>) -> Option<Reason> {
    use Reason::{Absent, Invisible};
    Some(match form.name {
        "membar" | "fence" => {
            Invisible("orders memory accesses of several threads; one thread sees no difference")
        }
        "nanosleep" => Invisible("a pause of any length down to none is right"),
        "griddepcontrol" => Invisible(
            "kernels of a stream run one after another, so nothing is left to wait for or to let go",
        ),
        "cp" if form.has("commit_group") || form.has("wait_group") => {
            Invisible("copies are complete as soon as they are issued")
        }
        "cp" if form.has("arrive") => {
            Invisible("copies are complete as soon as they are issued: its two effects cancel out")
        }
        "mbarrier" if form.has("inval") => {
            Invisible("afterwards the object's memory has no defined content")
        }
        "wgmma" => Absent("exists for `.target sm_90a` alone, which no other device may execute"),
        _ => return None,
    })
}

/// A kernel that executes a form without a visible result, and ends well.
pub(crate) fn invisible(form: &Form<'_>) -> Case {
    let operands = match form.name {
        "nanosleep" => " 20",
        "cp" if form.has("wait_group") => " 0",
        "cp" if form.has("arrive") => " [%q0]",
        "mbarrier" => " [%q0]",
        _ => "",
    };
    let mut case = Case::bare(32, format!("{}{operands};", form.text));
    case.declarations = ".shared .align 8 .b64 sm[32];".to_owned();
    case.setup = "mov.b32 %q0, sm;\nmad.lo.u32 %q0, %t, 8, %q0;\n\
                  mbarrier.init.shared.b64 [%q0], 1;\n"
        .to_owned();
    case.finish = "mad.wide.u32 %out, %t, 8, %out;\nst.global.u64 [%out], 7;\n".to_owned();
    case.output = vec![0; 256];
    case.expected = Ok(vec![Slot::Bits(7); 32]);
    case
}

/// See [`reason`].
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    /// Executed, without a visible result.
    Invisible(&'static str),
    /// Not executed.
    Absent(&'static str),
}
