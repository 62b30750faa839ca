//! The demo's table.

use super::programs::Finished;
use super::session::Counters;

/// Prints one row for each program: what it did, and what the server says of it.
pub(crate) fn print(shared: &[Finished], counted: &Counters) {
    println!(
        "\n{:<15} {:>8} {:>8} {:>12} {:>10}  result",
        "program", "pid", "kernels", "by server", "copied"
    );
    for Finished { report, .. } in shared {
        let client = counted.client(report.pid);
        let by_server =
            client.map_or("not attached".to_owned(), |client| client.kernels.to_string());
        let result = match (report.right, client.and_then(|client| client.fault)) {
            (true, Some(_)) => "illegal address, its own",
            (true, None) => "right",
            (false, _) => "WRONG",
        };
        println!(
            "{:<15} {:>8} {:>8} {by_server:>12} {:>10}  {result}",
            report.program,
            report.pid,
            report.kernels,
            size(report.copied_bytes),
        );
    }
    let copied: u64 = shared
        .iter()
        .filter_map(|finished| counted.client(finished.report.pid))
        .map(|client| client.copied_bytes)
        .sum();
    println!("copied by server {}: {}", counted.server_pid, size(copied));
    if let Some(most) = most_used(shared) {
        println!("device memory in use, all programs and the server: {} at most", size(most));
    }
}

/// Prints what sharing gave: only where a GPU did the work.
pub(crate) fn compare(alone: &[Finished], shared: &[Finished], shared_ms: f64) {
    let alone_ms: f64 = alone.iter().map(|finished| finished.report.time_ms).sum();
    let kernels: u64 = shared.iter().map(|finished| finished.report.kernels).sum();
    let rate = |ms: f64| kernels as f64 / ms * 1e3;
    println!("\n{:<44} {:>10} {:>14}", "", "time", "kernels/s");
    println!("{:<44} {alone_ms:>7.0} ms {:>14.0}", "natively, one after the other", rate(alone_ms));
    println!(
        "{:<44} {shared_ms:>7.0} ms {:>14.0}",
        "under OpenMPS, at once, start of the daemon too",
        rate(shared_ms)
    );
    let natively: Option<u64> = alone.iter().map(|it| it.report.device_used_bytes).max().flatten();
    if let (Some(one), Some(all)) = (natively, most_used(shared)) {
        println!(
            "device memory: {} for one program natively, {} for all {} under OpenMPS",
            size(one),
            size(all),
            shared.len()
        );
    }
}

fn most_used(programs: &[Finished]) -> Option<u64> {
    programs.iter().filter_map(|finished| finished.report.device_used_bytes).max()
}

fn size(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let bytes = bytes as f64;
    if bytes < KIB {
        format!("{bytes:.0} B")
    } else if bytes < KIB * KIB {
        format!("{:.1} KiB", bytes / KIB)
    } else {
        format!("{:.1} MiB", bytes / KIB / KIB)
    }
}
