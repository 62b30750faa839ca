//! What came of a module's tests, and whether that is what must be.

use std::collections::BTreeMap;

use super::lists::Module;

/// What came of a function's cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cases {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Cases {
    fn passes(self) -> bool {
        self.passed > 0 && self.failed == 0
    }
}

/// By function.
pub(super) type Outcomes = BTreeMap<String, Cases>;

/// Reads a report of lines `OUTCOME<TAB>FUNCTION`.
pub(super) fn parse(report: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (outcome, function) in report.lines().filter_map(|line| line.split_once('\t')) {
        let cases = outcomes.entry(function.to_owned()).or_default();
        match outcome {
            "passed" => cases.passed += 1,
            "skipped" => cases.skipped += 1,
            _ => cases.failed += 1,
        }
    }
    outcomes
}

/// What a module's two runs say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Runs of functions of the pass list that passed.
    pub(super) passed: u64,
    /// What must not be, one line each.
    pub(super) faults: Vec<String>,
    /// Functions that pass and are not on the list, with their cases.
    pub(super) news: BTreeMap<String, u64>,
}

/// Compares both runs with the pass list and with each other.
pub(super) fn judge(module: &Module, native: &Outcomes, attached: &Outcomes) -> Verdict {
    let mut verdict = Verdict::default();
    for (function, &expected) in &module.passing {
        for (mode, outcomes) in [("natively", native), ("under OpenMPS", attached)] {
            let cases = outcomes.get(function).copied().unwrap_or_default();
            if cases.passes() && cases.passed >= expected {
                verdict.passed += 1;
            } else {
                verdict.faults.push(format!(
                    "{function} {mode}: {} of {expected} cases passed, {} failed, {} were skipped",
                    cases.passed, cases.failed, cases.skipped
                ));
            }
        }
    }
    let mut functions: Vec<_> = native.keys().chain(attached.keys()).collect();
    functions.sort();
    functions.dedup();
    for function in functions.into_iter().filter(|name| !module.passing.contains_key(*name)) {
        let [here, there] =
            [native, attached].map(|run| run.get(function).copied().unwrap_or_default());
        if here.passes() && here == there {
            verdict.news.insert(function.clone(), here.passed);
        } else if here.failed + there.failed > 0 || here != there {
            verdict.faults.push(format!(
                "{function}: neither passing nor excluded: natively {here:?}, under OpenMPS {there:?}"
            ));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::lists::{Module, Proof, Suite, Tier};
    use super::{Verdict, judge, parse};

    fn module(passing: &[(&str, u64)]) -> Module {
        Module {
            suite: Suite::Numba,
            name: "m".to_owned(),
            tier: Tier::Quick,
            proof: Proof::Kernels,
            passing: passing.iter().map(|&(name, cases)| (name.to_owned(), cases)).collect(),
            excluded: BTreeSet::new(),
        }
    }

    #[test]
    fn a_listed_function_must_pass_in_both_runs_with_all_its_cases() {
        let good = parse("passed\tA::f\npassed\tA::f\n");
        let short = parse("passed\tA::f\nskipped\tA::f\n");
        let module = module(&[("A::f", 2)]);
        let verdict = judge(&module, &good, &good);
        assert_eq!(verdict, Verdict { passed: 2, ..Verdict::default() });
        let verdict = judge(&module, &good, &short);
        assert_eq!((verdict.passed, verdict.faults.len()), (1, 1));
        assert_eq!(judge(&module, &parse(""), &parse("")).faults.len(), 2, "nothing ran");
    }

    #[test]
    fn a_function_on_no_list_may_pass_or_be_skipped_but_not_fail_or_differ() {
        let module = module(&[]);
        let good = parse("passed\tf\n");
        assert_eq!(judge(&module, &good, &good).news, BTreeMap::from([("f".to_owned(), 1)]));
        let skipped = parse("skipped\tf\n");
        assert_eq!(judge(&module, &skipped, &skipped), Verdict::default());
        assert_eq!(judge(&module, &good, &skipped).faults.len(), 1);
        let failed = parse("failed\tf\n");
        assert_eq!(judge(&module, &failed, &failed).faults.len(), 1);
    }
}
