//! Every instruction form that compilers write, executed: `COVERAGE-PTX.md` is this suite's result.
//!
//! `forms.tsv` lists the forms. Each has a [`Case`](case::Case): a small kernel and what a plain
//! reference says that it must do. The kernel runs as it is, at every vector level, and must give
//! exactly that; then once for every [`Mutation`](mutate::Mutation) of the form, and must not.
//! Forms without a visible result are listed with the reason.

mod case;
mod cases;
mod driver;
mod exact;
mod form;
#[path = "../machine/mod.rs"]
mod machine;
mod mutate;
mod operands;
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::path::Path;
use std::sync::OnceLock;

use softcuda::exec::SimdLevel;

use case::Outcome;
use cases::Reason;
use form::Form;
use mutate::Mutation;

/// The list, with how often each form was seen.
const FORMS: &str = include_str!("forms.tsv");

/// What is known of a form.
pub(crate) struct Report {
    pub(crate) form: String,
    pub(crate) count: u32,
    pub(crate) proof: Proof,
}

pub(crate) enum Proof {
    /// A case was run.
    Case {
        chapter: &'static str,
        /// What is wrong with the results, or with the case.
        problem: Option<String>,
        /// The ways of breaking the form that the executor can take, and whether the case notices.
        mutations: Vec<(Mutation, Notice)>,
    },
    /// There is no case that could fail, for this reason.
    Reason {
        reason: Reason,
        /// Why a form without a visible result does not even run.
        problem: Option<String>,
    },
    /// There is neither.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    Noticed,
    Unnoticed,
}

impl Report {
    fn new(form: &str, count: u32) -> Self {
        let parsed = Form::new(form);
        let proof = match (cases::find(&parsed), cases::reason(&parsed)) {
            (Some((chapter, case)), _) => prove(&parsed, chapter, &case),
            (None, Some(reason)) => Proof::Reason { reason, problem: execute(&parsed, reason) },
            (None, None) => Proof::Nothing,
        };
        Self { form: form.to_owned(), count, proof }
    }

    /// The ways of breaking the form that its case notices.
    pub(crate) fn broken(&self) -> Vec<&Mutation> {
        match &self.proof {
            Proof::Case { mutations, .. } => mutations
                .iter()
                .filter(|(_, notice)| *notice == Notice::Noticed)
                .map(|(mutation, _)| mutation)
                .collect(),
            _ => Vec::new(),
        }
    }

    fn problems(&self) -> Vec<String> {
        match &self.proof {
            Proof::Case { problem, mutations, .. } => {
                let unnoticed = mutations.iter().filter(|(_, n)| *n == Notice::Unnoticed);
                let unnoticed =
                    unnoticed.map(|(m, _)| format!("{}: {m:?} is not noticed", self.form));
                problem.iter().map(|p| format!("{}: {p}", self.form)).chain(unnoticed).collect()
            }
            Proof::Reason { problem, .. } => {
                problem.iter().map(|p| format!("{}: {p}", self.form)).collect()
            }
            Proof::Nothing => vec![format!("{}: no case and no reason", self.form)],
        }
    }
}

/// Runs a form without a visible result; makes sure that a form which is not executed is refused.
fn execute(form: &Form<'_>, reason: Reason) -> Option<String> {
    match reason {
        Reason::Absent(_) => {
            let case = case::Case::bare(1, format!("{};", form.text));
            match case.run(&str::to_owned, SimdLevel::detect()) {
                Outcome::Refused(why) if why.contains(form.name) => None,
                outcome => Some(format!("it is not refused by name: {outcome:?}")),
            }
        }
        Reason::Invisible(_) => run_everywhere(&cases::invisible(form)),
    }
}

/// Runs a case as it is at every vector level; says what is wrong.
fn run_everywhere(case: &case::Case) -> Option<String> {
    let wrong =
        machine::levels().into_iter().find_map(|level| match case.run(&str::to_owned, level) {
            Outcome::Right => None,
            Outcome::Wrong(what) | Outcome::Refused(what) => Some(format!("{level:?}: {what}")),
        });
    wrong.or_else(|| run_everywhere(case.next.as_deref()?))
}

/// Runs a case as it is and broken.
fn prove(form: &Form<'_>, chapter: &'static str, case: &case::Case) -> Proof {
    if !mutate::occurs(form.text, &case.body) {
        let problem = Some("its case is without it".to_owned());
        return Proof::Case { chapter, problem, mutations: Vec::new() };
    }
    let problem = run_everywhere(case);
    if problem.is_some() {
        return Proof::Case { chapter, problem, mutations: Vec::new() };
    }
    let mutations = mutate::mutations(form).into_iter().filter_map(|mutation| {
        let broken = |text: &str| mutation.apply(form.text, text);
        let mut next = Some(case);
        while let Some(case) = next {
            match case.run(&broken, SimdLevel::detect()) {
                Outcome::Right => next = case.next.as_deref(),
                Outcome::Wrong(_) => return Some((mutation, Notice::Noticed)),
                Outcome::Refused(_) => return None,
            }
        }
        Some((mutation, Notice::Unnoticed))
    });
    Proof::Case { chapter, problem, mutations: mutations.collect() }
}

/// The reports of all forms; made once.
fn reports() -> &'static [Report] {
    static REPORTS: OnceLock<Vec<Report>> = OnceLock::new();
    REPORTS.get_or_init(|| {
        let lines = FORMS.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let (form, count) = line.split_once('\t').expect("a form and a count");
                Report::new(form, count.parse().expect("a count"))
            })
            .collect()
    })
}

/// Fails with what is wrong with the forms of a chapter.
fn check(chapter: &str) {
    let of_chapter =
        |r: &&Report| matches!(&r.proof, Proof::Case { chapter: c, .. } if *c == chapter);
    let reports: Vec<&Report> = reports().iter().filter(of_chapter).collect();
    assert!(!reports.is_empty(), "no form belongs to {chapter}");
    let problems: Vec<String> = reports.iter().flat_map(|r| r.problems()).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    let unproven: Vec<&str> =
        reports.iter().filter(|r| r.broken().is_empty()).map(|r| r.form.as_str()).collect();
    assert!(unproven.is_empty(), "nothing breaks {unproven:?}");
}

macro_rules! chapters {
    ($($chapter:ident),* $(,)?) => {
        $(
            #[test]
            fn $chapter() {
                check(stringify!($chapter));
            }
        )*

        #[test]
        fn every_chapter_has_a_test() {
            let tests = [$(stringify!($chapter)),*];
            let chapters: Vec<&str> = cases::CHAPTERS.iter().map(|(name, _)| *name).collect();
            assert_eq!(chapters, tests);
        }
    };
}

chapters!(
    integer, float, convert, compare, moves, memory, params, atomics, collective, barrier, control,
    transfer, matrix, texture,
);

#[test]
fn every_form_has_a_case_or_a_reason() {
    let problems: Vec<String> = reports()
        .iter()
        .filter(|r| !matches!(r.proof, Proof::Case { .. }))
        .flat_map(Report::problems)
        .collect();
    assert!(problems.is_empty(), "{} forms:\n{}", problems.len(), problems.join("\n"));
}

/// With `OPENMPS_WRITE_COVERAGE` set, writes the table instead of comparing it.
#[test]
fn the_table_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../COVERAGE-PTX.md");
    let text = table::markdown(reports());
    if std::env::var_os("OPENMPS_WRITE_COVERAGE").is_some() {
        std::fs::write(&path, text).expect("the table can be written");
        return;
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(current == text, "COVERAGE-PTX.md is out of date: run `cargo xtask coverage`");
}
