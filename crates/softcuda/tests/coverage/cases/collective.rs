//! Exchanges between the lanes of a warp, by whole warps and by parts of one.

use crate::case::{Case, Slot, load, poison, store, words};
use crate::form::Form;
use crate::operands::{Domain, tuples};

/// Lanes of the second warp that take part when only some do.
const SOME: u32 = 0x0f0f_3355;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    Some(match form.name {
        "shfl" => shuffle(form),
        "vote" => vote(form),
        "match" => match_lanes(form),
        "redux" => reduce(form),
        "activemask" => active_mask(),
        _ => return None,
    })
}

/// Two warps: the first exchanges as a whole, of the second only the lanes in [`SOME`].
struct Exchange {
    /// Types of the operands, registers 1, 2, ..
    operands: Vec<&'static str>,
    /// Types of the results, registers 20, 21, ..
    results: Vec<&'static str>,
    /// The instructions; member masks are in `%r30`.
    body: String,
    tuples: Vec<Vec<u64>>,
}

impl Exchange {
    /// `reference(lane, members, tuples of the warp)` gives the results of a lane that takes part.
    fn case(self, reference: impl Fn(usize, u32, &[Vec<u64>]) -> Vec<u64>) -> Case {
        let mut case = Case::bare(64, self.body);
        case.setup = format!(
            "mad.wide.u32 %in, %t, {}, %in;\nmad.wide.u32 %out, %t, {}, %out;\n",
            self.operands.len() * 8,
            self.results.len() * 8
        );
        for (n, ty) in self.operands.iter().enumerate() {
            case.setup += &load(ty, n + 1, "%in", n * 8);
        }
        for (n, ty) in self.results.iter().enumerate() {
            case.setup += &poison(ty, 20 + n);
            case.finish += &store(ty, 20 + n, "%out", n * 8);
        }
        case.setup += &format!(
            "setp.lt.u32 %p30, %t, 32;\nselp.b32 %r30, -1, {SOME}, %p30;\nmov.b32 %q0, %laneid;\n\
             shr.u32 %q1, %r30, %q0;\nand.b32 %q1, %q1, 1;\nsetp.eq.u32 %p31, %q1, 0;\n\
             @%p31 bra SKIP;\n"
        );
        case.finish += "SKIP:\n";
        let tuples = &self.tuples[..64];
        let mut expected = Vec::new();
        for thread in 0..64 {
            let (warp, lane) = (thread / 32, thread % 32);
            let members = if warp == 0 { u32::MAX } else { SOME };
            if members >> lane & 1 == 0 {
                expected.extend(vec![0; self.results.len()]);
                continue;
            }
            let got = reference(lane, members, &tuples[warp * 32..warp * 32 + 32]);
            assert_eq!(got.len(), self.results.len());
            expected.extend(got);
        }
        case.input = words(&tuples.concat());
        case.output = vec![0; expected.len() * 8];
        case.expected = Ok(expected.into_iter().map(Slot::Bits).collect());
        case
    }
}

fn members(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

/// Shuffles by a distance of each lane's own, over the whole warp and over segments of eight.
fn shuffle(form: &Form<'_>) -> Case {
    let mode = form.one_of(&["up", "down", "bfly", "idx"]).expect("a mode");
    let clamp = if mode == "up" { 0 } else { 31 };
    let segments = 0x1800 | clamp;
    let body = format!(
        "{0} %r20|%p21, %r1, %r2, {clamp}, %r30;\n{0} %r22, %r1, %r2, {segments}, %r30;",
        form.text
    );
    let exchange = Exchange {
        operands: vec!["b32", "b32"],
        results: vec!["b32", "pred", "b32"],
        body,
        tuples: tuples(&[Domain::Int(32), Domain::Below(14)], |_| true),
    };
    exchange.case(|lane, members, t| {
        let distance = t[lane][1] as usize;
        let source = |width: usize| {
            let start = lane / width * width;
            match mode {
                "up" => lane.checked_sub(distance).filter(|&from| from >= start),
                "down" => Some(lane + distance).filter(|&from| from < start + width),
                "bfly" => Some(lane ^ distance).filter(|&from| from < start + width),
                _ => Some(start + distance % width),
            }
        };
        // From a lane that does not take part, nothing defined comes: the software GPU gives what
        // its register holds.
        let _ = members;
        let value = |from: Option<usize>| t[from.unwrap_or(lane)][0];
        vec![value(source(32)), u64::from(source(32).is_some()), value(source(8))]
    })
}

fn vote(form: &Form<'_>) -> Case {
    let mode = form.one_of(&["all", "any", "ballot"]).expect("a mode");
    let result = if mode == "ballot" { "b32" } else { "pred" };
    let register = crate::form::register(result, 20);
    let second = crate::form::register(result, 21);
    let third = crate::form::register(result, 22);
    // A mixed predicate, one that holds everywhere, one that holds nowhere.
    let body = format!(
        "{0} {register}, %p1, %r30;\n{0} {second}, %p32, %r30;\n{0} {third}, %p33, %r30;",
        form.text
    );
    let exchange = Exchange {
        operands: vec!["pred"],
        results: vec![result; 3],
        body,
        tuples: tuples(&[Domain::Bool], |_| true),
    };
    let mut case = exchange.case(|_, mask, t| {
        let votes: u32 = members(mask).map(|lane| (t[lane][0] as u32) << lane).sum();
        match mode {
            "ballot" => vec![u64::from(votes), u64::from(mask), 0],
            "all" => vec![u64::from(votes == mask), 1, 0],
            _ => vec![u64::from(votes != 0), 1, 0],
        }
    });
    case.setup = format!("setp.eq.u32 %p32, 0, 0;\nsetp.ne.u32 %p33, 0, 0;\n{}", case.setup);
    if mode != "ballot" {
        // A dropped instruction must not leave what is right by chance.
        case.setup += "setp.ne.u32 %p21, 0, 0;\nsetp.eq.u32 %p22, 0, 0;\n";
    }
    case
}

/// A few values, so that lanes have partners; for `all` also one value everywhere.
fn match_lanes(form: &Form<'_>) -> Case {
    let wide = form.has("b64");
    let ty = if wide { "b64" } else { "b32" };
    let register = crate::form::register(ty, 1);
    let mut tuples = tuples(&[Domain::Below(5)], |_| true);
    for tuple in &mut tuples {
        // Differences in the upper half count.
        tuple[0] = if wide { tuple[0] << 40 | 7 } else { tuple[0] << 20 };
    }
    let all = form.has("all");
    let (body, results) = if all {
        let same = if wide { "%d31" } else { "%r31" };
        let body =
            format!("{0} %r20|%p21, {register}, %r30;\n{0} %r22|%p23, {same}, %r30;", form.text);
        (body, vec!["b32", "pred", "b32", "pred"])
    } else {
        (format!("{} %r20, {register}, %r30;", form.text), vec!["b32"])
    };
    let exchange = Exchange { operands: vec![ty], results, body, tuples };
    let mut case = exchange.case(|lane, mask, t| {
        let same = members(mask).filter(|&other| t[other][0] == t[lane][0]);
        let same: u32 = same.map(|other| 1u32 << other).sum();
        if all { vec![0, 0, u64::from(mask), 1] } else { vec![u64::from(same)] }
    });
    case.setup = format!("mov.b32 %r31, 99;\nmov.b64 %d31, 99;\n{}", case.setup);
    case
}

fn reduce(form: &Form<'_>) -> Case {
    let op = form.one_of(&["add", "min", "max"]).expect("an operation");
    let exchange = Exchange {
        operands: vec!["b32"],
        results: vec!["b32"],
        body: format!("{} %r20, %r1, %r30;", form.text),
        tuples: tuples(&[Domain::Int(32)], |_| true),
    };
    exchange.case(|_, mask, t| {
        let values = members(mask).map(|lane| t[lane][0] as u32 as i32);
        let value = match op {
            "add" => values.fold(0, i32::wrapping_add),
            "min" => values.min().expect("members"),
            _ => values.max().expect("members"),
        };
        vec![u64::from(value as u32)]
    })
}

/// The lanes that took a branch.
fn active_mask() -> Case {
    let exchange = Exchange {
        operands: vec!["b32"],
        results: vec!["b32"],
        body: "activemask.b32 %r20;".to_owned(),
        tuples: tuples(&[Domain::Int(32)], |_| true),
    };
    exchange.case(|_, mask, _| vec![u64::from(mask)])
}
