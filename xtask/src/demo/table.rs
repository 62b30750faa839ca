//! The demo's table.

use super::programs::Finished;
use super::session::Counters;

/// Prints one row for each program: what it did alone and shared, and what the server says of it.
pub(crate) fn print(alone: &[Finished], shared: &[Finished], counted: &Counters) {
    println!(
        "\n{:<15} {:>8} {:>8} {:>12} {:>9} {:>10} {:>10}  result",
        "program", "pid", "kernels", "by server", "copied", "alone", "shared"
    );
    for (alone, shared) in alone.iter().zip(shared) {
        let report = &shared.report;
        let by_server = match counted.client(report.pid) {
            Some(client) => client.kernels.to_string(),
            None => "not attached".to_owned(),
        };
        let right = report.right && report.checksum == alone.report.checksum;
        println!(
            "{:<15} {:>8} {:>8} {:>12} {:>9} {:>7.0} ms {:>7.0} ms  {}",
            report.program,
            report.pid,
            report.kernels,
            by_server,
            size(report.copied_bytes),
            alone.report.time_ms,
            report.time_ms,
            if right { "right" } else { "WRONG" },
        );
    }
    let copied: u64 = shared
        .iter()
        .filter_map(|finished| counted.client(finished.report.pid))
        .map(|client| client.copied_bytes)
        .sum();
    println!("copied by server {}: {}", counted.server_pid, size(copied));
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
