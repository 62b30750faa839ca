use std::time::Instant;
fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).unwrap();
        let t = Instant::now();
        match softcuda::ptx::Module::parse_outline(&text) {
            Ok(m) => println!(
                "{path}: {} functions {:.1} MB/s",
                m.functions.len(),
                text.len() as f64 / t.elapsed().as_secs_f64() / 1e6
            ),
            Err(e) => println!("{path}: {e}"),
        }
    }
}
