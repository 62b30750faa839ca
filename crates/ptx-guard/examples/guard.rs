//! Reads PTX from standard input and writes it guarded to standard output, to look at or to give to
//! an assembler.

use std::io::{Read, stdin};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let guarded = ptx_guard::instrument(&text)?;
    print!("{}", guarded.text);
    eprintln!("{} checked, {} unchecked", guarded.sites.len(), guarded.unchecked);
    Ok(())
}
