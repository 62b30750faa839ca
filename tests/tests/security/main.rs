//! Attacks between users, one file for each finding of the security reviews: `f` of the first, `n`
//! of the second, `r` and `s` of the third, `t` of the fourth.
//!
//! Each test is named after its finding (`f03_...`; `n01_...` of the second review) and runs real
//! processes of several users, so it needs root. Without root it is listed as ignored, by name;
//! with `CI=true` that is a failure.

use std::env;
use std::sync::{PoisonError, RwLock};

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::geteuid;

mod b01;
mod b04;
mod b06;
mod f01;
mod f02;
mod f03;
mod f04;
mod f05;
mod f06;
mod f07;
mod f08;
mod f09;
mod f10;
mod f11;
mod f12;
mod f13;
mod f14;
mod f15;
mod hooks;
mod n01;
mod n04;
mod n05;
mod n07;
mod n08;
mod n09;
mod n11;
mod n12;
mod r01;
mod r02;
mod r03;
mod r05;
mod r07;
mod r08;
mod s01;
mod s02;
mod s05;
mod second_line;
mod t01;
mod t05;

/// A user without privileges, whom an attack is to harm.
pub const VICTIM: u32 = 20_001;
/// Another user without privileges.
pub const ATTACKER: u32 = 20_002;

/// One test.
pub struct Test {
    /// Its name, which begins with the finding's.
    pub name: &'static str,
    /// What else may run meanwhile.
    pub beside: Beside,
    /// Does the attack; `Ok` when it fails.
    pub run: fn() -> Result<()>,
}

/// What may run at the same time as a test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Other tests.
    Others,
    /// Nothing: it changes a setting of the machine, and restores it.
    Nothing,
}

impl Test {
    /// A test that changes nothing of the machine.
    pub const fn new(name: &'static str, run: fn() -> Result<()>) -> Self {
        Self { name, beside: Beside::Others, run }
    }

    /// A test that changes a setting of the machine.
    pub const fn alone(name: &'static str, run: fn() -> Result<()>) -> Self {
        Self { name, beside: Beside::Nothing, run }
    }
}

/// Held shared by a test of [`Beside::Others`], exclusively by one of [`Beside::Nothing`].
static MACHINE: RwLock<()> = RwLock::new(());

fn run(test: &'static Test) -> Result<(), Failed> {
    if !geteuid().is_root() {
        return Err(format!("{} was not run: it needs root", test.name).into());
    }
    let result = match test.beside {
        Beside::Others => {
            let _machine = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
            (test.run)()
        }
        Beside::Nothing => {
            let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
            (test.run)()
        }
    };
    result.map_err(|error| format!("{error:#}").into())
}

fn main() {
    let arguments = Arguments::from_args();
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
    let tests = [
        b01::TESTS,
        b04::TESTS,
        b06::TESTS,
        f01::TESTS,
        f02::TESTS,
        f03::TESTS,
        f04::TESTS,
        f05::TESTS,
        f06::TESTS,
        f07::TESTS,
        f08::TESTS,
        f09::TESTS,
        f10::TESTS,
        f11::TESTS,
        f12::TESTS,
        f13::TESTS,
        f14::TESTS,
        f15::TESTS,
        n01::TESTS,
        n04::TESTS,
        n05::TESTS,
        n07::TESTS,
        n08::TESTS,
        n09::TESTS,
        n11::TESTS,
        n12::TESTS,
        r01::TESTS,
        r02::TESTS,
        r03::TESTS,
        r05::TESTS,
        r07::TESTS,
        r08::TESTS,
        s01::TESTS,
        s02::TESTS,
        s05::TESTS,
        second_line::TESTS,
        t01::TESTS,
        t05::TESTS,
    ];
    let trials = tests.into_iter().flatten().map(|test| {
        let is_possible = geteuid().is_root() || is_ci;
        Trial::test(test.name, move || run(test)).with_ignored_flag(!is_possible)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}
