//! Prints a module of random programs: `print SEED COUNT`.

use random_ptx::{Random, generate, module};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let seed = arguments.next().and_then(Result::ok).unwrap_or(0);
    let count = arguments.next().and_then(Result::ok).unwrap_or(1);
    let programs: Vec<_> = (0..count).map(|i| generate(Random::of_item(seed, i))).collect();
    print!("{}", module(&programs));
}
