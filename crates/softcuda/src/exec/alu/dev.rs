use super::recorded::*;
use super::testing::try_eval;
#[test]
fn dev_compare() {
    let idx: Vec<(String, Vec<String>, Vec<u32>, usize)> = serde_json::from_str(&std::fs::read_to_string("/tmp/oracle/index.json").unwrap()).unwrap();
    let bin = std::fs::read("/tmp/oracle/results.bin").unwrap();
    let filter = std::env::var("F").unwrap_or_default();
    let max: usize = std::env::var("N").ok().map_or(3, |n| n.parse().unwrap());
    let (mut good, mut bad, mut none) = (0, 0, 0);
    let mut ok = vec![];
    for (id, ins, outs, off) in &idx {
        if !filter.is_empty() && !id.contains(&filter) { continue }
        let get = |k: usize, i: u64| { let o = off + k * 8192 + i as usize * 8; u64::from_le_bytes(bin[o..o + 8].try_into().unwrap()) };
        let form = id.as_str();
        if ins.iter().any(|c| !known(c)) { continue }
        let mut miss = 0;
        let mut err = None;
        let std_out = std::panic::catch_unwind(|| ()).is_ok();
        let _ = std_out;
        for i in 0..1024u64 {
            let a: Vec<u64> = ins.iter().enumerate().map(|(j, c)| operand(c, i, j as u64)).collect();
            let want: Vec<u64> = (0..outs.len()).map(|k| get(k, i)).collect();
            match results(form, &a, outs.len(), &try_eval) {
                Err(e) => { err = Some(e); break }
                Ok(got) => {
                    let got: Vec<u64> = got.iter().zip(outs).map(|(g, w)| if *w == 16 { g & 0xffff } else { *g }).collect();
                    if got != want && !excused(ins, &a) {
                        miss += 1;
                        if miss <= max { println!("   {form} {a:x?} want {want:x?} got {got:x?}"); }
                    }
                }
            }
        }
        if let Some(e) = err { none += 1; println!("NONE {form}: {e}"); continue }
        if miss > 0 { bad += 1; println!("BAD {form} {miss}"); } else { good += 1; ok.push(id.clone()); }
    }
    println!("good {good} bad {bad} none {none}");
    std::fs::write("/tmp/oracle/ok.json", serde_json::to_string(&ok).unwrap()).unwrap();
}
fn known(c: &str) -> bool { matches!(c, "f16"|"bf16"|"f32"|"f64"|"f16x2"|"bf16x2"|"u16x2"|"s16x2"|"u16"|"s16"|"u32"|"s32"|"b32"|"u64"|"s64"|"cnt"|"sel"|"p") }
