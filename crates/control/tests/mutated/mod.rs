//! Mutated texts into what reads texts: never a panic, a crawl or unbounded memory. Shared by the
//! fuzz targets of several crates.
//!
//! Every run begins with the same inputs, those of [`CORPUS`]; what follows is new each time.
//! `OPENMPS_FUZZ_SECONDS` says how long a target goes on and `OPENMPS_TEST_SEED` repeats a run;
//! `cargo xtask fuzz` sets both. An input that fails is printed.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Seed of the inputs that every run has, and how many there are.
const CORPUS: (u64, u64) = (1, 2000);
const SECONDS: u64 = 2;
/// No reader needs a thousandth of that for one text.
const LONGEST: Duration = Duration::from_secs(10);
/// What the process may grow by; other tests share it.
const GROWTH_BYTES: usize = 512 << 20;

const WORDS: &[&str] = &[
    "0",
    "1",
    "-1",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "1e308",
    "-1e999",
    "NaN",
    "inf",
    "0.0000001",
    "99999999999999999999999999",
    "\0",
    "\n",
    "\r",
    "\t",
    " ",
    ",",
    ";",
    ":",
    "=",
    "/",
    "..",
    "-",
    "*",
    "%",
    "@",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "\"",
    "'",
    "\\",
    "\\u0000",
    "null",
    "true",
    "4G",
    "8E",
    "16E",
    "3X",
    "0=",
    "\u{1b}[31m",
    "\u{202e}",
    "é",
];

/// A generator of xorshift's kind.
struct Random(u64);

impl Random {
    /// Of one input of a run.
    fn of(seed: u64, number: u64) -> Self {
        let mixed =
            (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self(mixed ^ (mixed >> 33) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Feeds mutated `seeds` to a reader, as texts; what is no UTF-8 any more is made so.
pub(crate) fn fuzz(target: &str, seeds: &[&str], read: impl Fn(&str)) {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh);
    let _ = writeln!(std::io::stderr(), "fuzz {target}: OPENMPS_TEST_SEED={seed}");
    let seconds = Duration::from_secs(number("OPENMPS_FUZZ_SECONDS").unwrap_or(SECONDS));
    for seed in seeds {
        // What is not mutated is read, too.
        one(target, seed, &read);
    }
    let (before, start) = (resident_bytes(), Instant::now());
    let mut count = 0;
    while count < CORPUS.1 || start.elapsed() < seconds {
        let of_run = if count < CORPUS.1 { CORPUS.0 } else { seed };
        let mut random = Random::of(of_run, count);
        let text = mutated(seeds, &mut random);
        one(target, &String::from_utf8_lossy(&text), &read);
        count += 1;
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "fuzz {target}: {grown} bytes more after {count} inputs");
    let _ = writeln!(std::io::stderr(), "fuzz {target}: {count} inputs");
}

fn one(target: &str, text: &str, read: &impl Fn(&str)) {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| read(text)));
    let shown: String = text.chars().take(2000).collect();
    assert!(result.is_ok(), "fuzz {target}: a panic of {shown:?}");
    assert!(start.elapsed() < LONGEST, "fuzz {target}: {:?} of {shown:?}", start.elapsed());
}

fn mutated(seeds: &[&str], random: &mut Random) -> Vec<u8> {
    let mut text = seeds[random.below(seeds.len())].as_bytes().to_vec();
    for _ in 0..1 + random.below(6) {
        let at = random.below(text.len() + 1);
        let end = at + random.below(text.len() - at + 1);
        let word = WORDS[random.below(WORDS.len())].as_bytes();
        match random.below(8) {
            0 if at < text.len() => text[at] ^= 1 << random.below(8),
            1 => text.truncate(at),
            2 => drop(text.drain(at..end)),
            3 => drop(text.splice(at..end, word.iter().copied())),
            4 => drop(text.splice(at..at, word.repeat(1 + random.below(3000)))),
            5 => {
                let piece = text[at..end].to_vec();
                let to = random.below(text.len() + 1);
                drop(text.splice(to..to, piece));
            }
            6 => {
                let other = seeds[random.below(seeds.len())].as_bytes();
                let from = random.below(other.len() + 1);
                drop(text.splice(at.., other[from..].iter().copied()));
            }
            _ => drop(text.splice(at..at, word.iter().copied())),
        }
        text.truncate(256 << 10);
    }
    text
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
