//! All that is known of one client.

use link::wire::daemon::WaitReason;
use link::wire::fault::CallRecord;
use ratatui::text::{Line, Span};

use super::columns::{age, count, short};
use super::model::Row;
use super::palette::{Palette, Tone, bold};
use crate::trace::names;

/// Characters before what a line says.
const LABEL: usize = 11;

/// The client's page, of this width.
pub(super) fn lines(row: &Row, palette: Palette, width: u16) -> Vec<Line<'static>> {
    let bar = usize::from(width / 4).clamp(8, 30);
    let busy = palette.bar(bar, row.busy_percent / 100.0, Tone::Busy);
    let past = row.past.parts(usize::from(width).saturating_sub(LABEL).clamp(10, 60));
    let past = vec![palette.levels(&past, 100.0, Tone::Busy)];
    let most = row.limit_bytes.unwrap_or(row.gpu_bytes).max(1);
    let memory = palette.bar(bar, row.granted_bytes as f64 / most as f64, Tone::Memory);
    let mut lines = flowed("client", Vec::new(), &format!("{} {}", row.pid, row.command), width);
    let mut add = |label: &str, chart: Vec<Span<'static>>, text: &str| {
        lines.extend(flowed(label, chart, text, width));
    };
    add("user", Vec::new(), &whose(row));
    let (state, tone) = state(row);
    add("state", vec![palette.span("●", tone)], &state);
    if let Some(fault) = &row.fault {
        add("fault", vec![palette.span("●", Tone::Bad)], fault);
    }
    add("GPU time", busy, &busy_text(row));
    add("minute", past, "");
    add("memory", memory, &memory_text(row));
    add("SMs", Vec::new(), &sms(row));
    add("copies", Vec::new(), &copies(row));
    add("launches", Vec::new(), &launches(row));
    lines.push(Line::default());
    lines.extend(kernels(row, width));
    lines
}

/// A label, a chart, and words in as many lines as they need.
pub(super) fn flowed(
    label: &str,
    chart: Vec<Span<'static>>,
    text: &str,
    width: u16,
) -> Vec<Line<'static>> {
    let mut lines = vec![vec![Span::styled(format!("{label:<LABEL$}"), bold())]];
    lines[0].extend(chart);
    let used = |line: &[Span<'_>]| line.iter().map(Span::width).sum::<usize>();
    for word in text.split_ascii_whitespace() {
        let before = lines.last().map_or(0, |line| used(line));
        if before > LABEL && before + 1 + word.chars().count() > width.into() {
            lines.push(vec![Span::raw(" ".repeat(LABEL))]);
        }
        if let Some(line) = lines.last_mut() {
            let gap = if used(line) > LABEL { " " } else { "" };
            line.push(format!("{gap}{word}").into());
        }
    }
    lines.into_iter().map(Line::from).collect()
}

fn busy_text(row: &Row) -> String {
    let rate = count(row.kernels_per_s);
    format!("{:.1} %, {rate} kernels/s, {} kernels", row.busy_percent, row.kernels)
}

fn copies(row: &Row) -> String {
    let [all, rate, waiting] =
        [row.copied_bytes, row.copied_per_s as u64, row.queued_bytes].map(short);
    format!("{all}, {rate} a second; {waiting} wait in its ring")
}

fn launches(row: &Row) -> String {
    match row.launch_us {
        None => "none was measured since the last look".to_owned(),
        Some((p50, p99)) => {
            format!("half took the driver less than {p50} us, 99 % less than {p99} us")
        }
    }
}

fn whose(row: &Row) -> String {
    let mut text = match row.user == row.uid.to_string() {
        true => row.user.clone(),
        false => format!("{} ({})", row.user, row.uid),
    };
    let named = [("group", &row.group), ("reservation", &row.reservation)];
    for (what, name) in named {
        text.extend(name.as_ref().map(|name| format!(", {what} {name}")));
    }
    text.push_str(&format!(", server {}, GPU {}", row.server_pid, row.gpu));
    if !row.domain.is_empty() {
        text.push_str(&format!(", executor of {}", row.domain));
    }
    text
}

/// What a client does, in words.
pub(super) fn state(row: &Row) -> (String, Tone) {
    let waits = |text: &str| (format!("waits for {text}"), Tone::Warning);
    match (row.waits_for, &row.running) {
        _ if row.error != 0 => {
            (format!("its session has failed with error {}", row.error), Tone::Bad)
        }
        (Some(WaitReason::Memory), _) => waits("memory that others have"),
        (Some(WaitReason::Recovery), _) => waits("another executor, after a fault"),
        (Some(WaitReason::Turn), _) => waits("its turn: others have the GPU"),
        (Some(WaitReason::Move), _) => waits("the device's other context, to which it goes"),
        (Some(WaitReason::Load), _) => waits("kernels to end, to load code or the like"),
        (None, Some(running)) => {
            let name = running.launch.as_ref().map(|launch| names::plain(&launch.kernel));
            let name = name.unwrap_or_default();
            (format!("runs {name} for {}", age(running.age_us)), Tone::Good)
        }
        (None, None) => ("idle".to_owned(), Tone::Soft),
    }
}

fn memory_text(row: &Row) -> String {
    let of = match row.limit_bytes {
        Some(limit) => format!("{} of its limit {}", short(row.granted_bytes), short(limit)),
        None => format!("{} of {}, no limit", short(row.granted_bytes), short(row.gpu_bytes)),
    };
    match row.spilled_bytes {
        0 => of,
        spilled => format!("{of}; {} are in host memory", short(spilled)),
    }
}

fn sms(row: &Row) -> String {
    let class = if row.latency_class { ", latency class" } else { "" };
    format!(
        "{} of {} ({:.0} %), weight {}{class}",
        row.multiprocessors, row.gpu_multiprocessors, row.sm_percent, row.weight
    )
}

/// The latest launch first. Where there is little room, its shape goes.
fn kernels(row: &Row, width: u16) -> impl Iterator<Item = Line<'static>> {
    let line = move |ago: &str, grid: &str, block: &str, stream: &str, name: &str| match width {
        0..60 => format!("{ago:>7}  {name}"),
        _ => format!("{ago:>7}  {grid:<15} {block:<13} {stream:<6} {name}"),
    };
    let heading = line("AGO", "GRID", "BLOCK", "STREAM", "LAST KERNELS");
    let kernel = move |call: &CallRecord| {
        let launch = call.launch.as_ref()?;
        let shape = |[x, y, z]: [u32; 3]| format!("{x},{y},{z}");
        let (grid, block) = (shape(launch.grid), shape(launch.block));
        let (stream, name) = (launch.stream.to_string(), names::plain(&launch.kernel));
        Some(Line::from(line(&age(call.age_us), &grid, &block, &stream, &name)))
    };
    let none = row.launches.is_empty().then(|| Line::from("no kernel is known"));
    let lines: Vec<Line<'static>> = row.launches.iter().rev().filter_map(kernel).collect();
    std::iter::once(Line::styled(heading, bold())).chain(none).chain(lines)
}
