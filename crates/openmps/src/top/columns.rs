//! The columns of the tables: what each shows, and which of them a width has room for.

use link::wire::daemon::{ServerStatus, WaitReason};
use ratatui::text::{Line, Span};

use super::model::{Gpu, Row, Scene};
use super::palette::{Palette, Tone};
use crate::trace::names;

/// One column of a table whose lines are `T`s.
pub(super) struct Column<T> {
    pub(super) title: &'static str,
    /// 0: what is left of the line.
    pub(super) width: u16,
    side: Side,
    /// Where there is no room for all, those of the highest numbers go first. 0: it stays.
    rank: u8,
    place: Place,
    is_needed: fn(&Scene) -> bool,
    cell: fn(&T, Palette) -> Vec<Span<'static>>,
}

/// Where a cell's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Where a column is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// On the screen alone: bars, and what needs more than one look.
    Screen,
    /// In plain lines, too.
    Everywhere,
}

impl<T> Column<T> {
    const fn new(
        title: &'static str,
        (width, side): (u16, Side),
        rank: u8,
        cell: fn(&T, Palette) -> Vec<Span<'static>>,
    ) -> Self {
        Self { title, width, side, rank, place: Place::Everywhere, is_needed: |_| true, cell }
    }

    const fn where_needed(self, is_needed: fn(&Scene) -> bool) -> Self {
        Self { is_needed, ..self }
    }

    const fn on_screens(self) -> Self {
        Self { place: Place::Screen, ..self }
    }

    pub(super) fn heading(&self) -> Line<'static> {
        self.aligned(Line::from(self.title))
    }

    pub(super) fn cell(&self, of: &T, palette: Palette) -> Line<'static> {
        self.aligned(Line::from((self.cell)(of, palette)))
    }

    fn aligned(&self, line: Line<'static>) -> Line<'static> {
        match self.side {
            Side::Left => line,
            Side::Right => line.right_aligned(),
        }
    }

    /// A cell's text as wide as the column, without colours.
    pub(super) fn plain(&self, line: &Line<'_>) -> String {
        let (text, width) = (line.to_string(), usize::from(self.width));
        let text: String = if width > 0 { text.chars().take(width).collect() } else { text };
        match self.side {
            Side::Left => format!("{text:<width$}"),
            Side::Right => format!("{text:>width$}"),
        }
    }
}

/// Columns of that many characters, and the one that takes the rest, which has this many at least.
pub(super) fn fitting<T>(
    all: &'static [Column<T>],
    (width, least_rest): (u16, u16),
    place: Place,
    scene: &Scene,
) -> Vec<&'static Column<T>> {
    let mut wanted: Vec<usize> = (0..all.len())
        .filter(|&at| place == Place::Screen || all[at].place == Place::Everywhere)
        .filter(|&at| (all[at].is_needed)(scene))
        .collect();
    wanted.sort_by_key(|&at| all[at].rank);
    let mut room = width.saturating_sub(least_rest);
    let fitting = wanted.iter().take_while(|&&at| {
        let Column { width, rank, .. } = all[at];
        // A space is behind each.
        let taken = if width > 0 { width + 1 } else { 0 };
        let fits = rank == 0 || taken <= room;
        room = room.saturating_sub(taken);
        fits
    });
    let count = fitting.count();
    wanted.truncate(count);
    wanted.sort_unstable();
    wanted.into_iter().map(|at| &all[at]).collect()
}

/// How many characters the column of the rest has at least: commands in the client table, names in
/// that of the GPUs.
pub(super) fn least_rest(width: u16) -> u16 {
    (width * 3 / 20).clamp(8, 30)
}

fn text(text: impl Into<String>) -> Vec<Span<'static>> {
    vec![Span::raw(text.into())]
}

fn optional(value: Option<String>) -> Vec<Span<'static>> {
    text(value.unwrap_or_else(|| "-".to_owned()))
}

const CHART: u16 = 20;
const BAR: u16 = 10;

/// Those of the client table.
pub(super) const CLIENTS: &[Column<Row>] = &[
    Column::new("PID", (7, Side::Right), 0, |row: &Row, _| text(row.pid.to_string())),
    Column::new("USER", (8, Side::Left), 6, |row: &Row, _| text(row.user.clone())),
    Column::new("GROUP", (10, Side::Left), 5, |row: &Row, _| optional(row.group.clone()))
        .where_needed(|scene| scene.rows.iter().any(|row| row.group.is_some())),
    Column::new("SERVER", (7, Side::Right), 15, |row: &Row, _| text(row.server_pid.to_string()))
        .where_needed(|scene| {
            scene.gpus.windows(2).any(|pair| pair[0].server_pid != pair[1].server_pid)
        }),
    Column::new("GPU", (3, Side::Right), 3, |row: &Row, _| text(row.gpu.to_string()))
        .where_needed(|scene| scene.gpus.iter().any(|gpu| gpu.index > 0)),
    Column::new("DOMAIN", (10, Side::Left), 16, |row: &Row, _| text(row.domain.clone()))
        .where_needed(|scene| scene.rows.iter().any(|row| !row.domain.is_empty())),
    Column::new("BUSY%", (5, Side::Right), 1, |row: &Row, _| {
        text(format!("{:.1}", row.busy_percent))
    }),
    Column::new("", (BAR, Side::Left), 9, |row: &Row, palette| {
        palette.bar(BAR.into(), row.busy_percent / 100.0, Tone::Busy)
    })
    .on_screens(),
    Column::new("LAST MINUTE", (CHART, Side::Left), 10, |row: &Row, palette| {
        vec![palette.levels(&row.past.parts(CHART.into()), 100.0, Tone::Busy)]
    })
    .on_screens(),
    Column::new("KERN/S", (6, Side::Right), 4, |row: &Row, _| text(count(row.kernels_per_s))),
    Column::new("MEM", (6, Side::Right), 1, |row: &Row, _| text(short(row.granted_bytes))),
    Column::new("LIMIT", (6, Side::Right), 6, |row: &Row, _| optional(row.limit_bytes.map(short))),
    Column::new("", (BAR, Side::Left), 13, |row: &Row, palette| {
        let most = row.limit_bytes.unwrap_or(row.gpu_bytes);
        palette.bar(BAR.into(), part(row.granted_bytes, most), Tone::Memory)
    })
    .on_screens(),
    Column::new("SPILLED", (7, Side::Right), 8, |row: &Row, _| {
        optional((row.spilled_bytes > 0).then(|| short(row.spilled_bytes)))
    })
    .where_needed(|scene| scene.rows.iter().any(|row| row.spilled_bytes > 0)),
    Column::new("SMS", (3, Side::Right), 6, |row: &Row, _| text(row.multiprocessors.to_string())),
    Column::new("COPY/S", (6, Side::Right), 14, |row: &Row, _| {
        text(short(row.copied_per_s as u64))
    }),
    Column::new("QUEUED", (6, Side::Right), 17, |row: &Row, _| text(short(row.queued_bytes))),
    Column::new("P50us", (6, Side::Right), 11, |row: &Row, _| {
        optional(row.launch_us.map(|(p50, _)| format!("<{p50}")))
    }),
    Column::new("P99us", (6, Side::Right), 11, |row: &Row, _| {
        optional(row.launch_us.map(|(_, p99)| format!("<{p99}")))
    }),
    Column::new("STATE", (8, Side::Left), 2, |row: &Row, palette| vec![state(row, palette)]),
    Column::new("AGE", (5, Side::Right), 8, |row: &Row, _| {
        optional(row.running.as_ref().map(|running| age(running.age_us)))
    }),
    Column::new("KERNEL", (15, Side::Left), 8, |row: &Row, _| optional(kernel(row))),
    Column::new("COMMAND", (0, Side::Left), 0, |row: &Row, _| text(short_command(&row.command))),
];

/// Those of the GPUs' table.
pub(super) const GPUS: &[Column<Gpu>] = &[
    Column::new("GPU", (3, Side::Right), 0, |gpu: &Gpu, _| text(gpu.index.to_string())),
    Column::new("SERVER", (7, Side::Right), 9, |gpu: &Gpu, _| text(gpu.server_pid.to_string())),
    Column::new("STATUS", (6, Side::Left), 2, |gpu: &Gpu, palette| vec![status(gpu, palette)]),
    Column::new("CLIENTS", (7, Side::Right), 5, |gpu: &Gpu, _| text(gpu.clients.to_string())),
    Column::new("BUSY%", (5, Side::Right), 1, |gpu: &Gpu, _| {
        text(format!("{:.1}", gpu.busy_percent))
    }),
    Column::new("", (BAR, Side::Left), 7, |gpu: &Gpu, palette| {
        palette.bar(BAR.into(), gpu.busy_percent / 100.0, Tone::Busy)
    })
    .on_screens(),
    Column::new("LAST MINUTE", (CHART, Side::Left), 9, |gpu: &Gpu, palette| {
        vec![palette.levels(&gpu.past.parts(CHART.into()), 100.0, Tone::Busy)]
    })
    .on_screens(),
    Column::new("MEMORY", (11, Side::Right), 1, |gpu: &Gpu, _| {
        text(format!("{}/{}", short(gpu.granted_bytes), short(gpu.total_bytes)))
    }),
    Column::new("", (BAR, Side::Left), 8, |gpu: &Gpu, palette| {
        palette.bar(BAR.into(), part(gpu.granted_bytes, gpu.total_bytes), Tone::Memory)
    })
    .on_screens(),
    Column::new("KERN/S", (6, Side::Right), 4, |gpu: &Gpu, _| text(count(gpu.kernels_per_s))),
    Column::new("FAULTS", (6, Side::Right), 6, |gpu: &Gpu, palette| {
        let tone = if gpu.faults > 0 { Tone::Bad } else { Tone::Plain };
        vec![palette.span(gpu.faults.to_string(), tone)]
    }),
    Column::new("RESTARTS", (8, Side::Right), 10, |gpu: &Gpu, _| text(gpu.restarts.to_string())),
    Column::new("SMS", (3, Side::Right), 10, |gpu: &Gpu, _| text(gpu.multiprocessors.to_string())),
    Column::new("NAME", (0, Side::Left), 0, |gpu: &Gpu, _| text(gpu.name.clone())),
];

fn status(gpu: &Gpu, palette: Palette) -> Span<'static> {
    match gpu.status {
        _ if gpu.silent => palette.span("SILENT", Tone::Warning),
        ServerStatus::Initializing => palette.span("INIT", Tone::Plain),
        ServerStatus::Active => palette.span("ACTIVE", Tone::Good),
        ServerStatus::Fault => palette.span("FAULT", Tone::Bad),
    }
}

/// What a client does, in a word.
pub(super) fn state(row: &Row, palette: Palette) -> Span<'static> {
    match row.waits_for {
        _ if row.error != 0 => palette.span(format!("E{}", row.error), Tone::Bad),
        Some(WaitReason::Memory) => palette.span("memory", Tone::Warning),
        Some(WaitReason::Recovery) => palette.span("recovery", Tone::Warning),
        Some(WaitReason::Turn) => palette.span("turn", Tone::Warning),
        Some(WaitReason::Load) => palette.span("load", Tone::Warning),
        Some(WaitReason::Move) => palette.span("move", Tone::Warning),
        None if row.running.is_some() => palette.span("runs", Tone::Good),
        None => palette.span("idle", Tone::Soft),
    }
}

/// The kernel that runs, as its source has the name.
pub(super) fn kernel(row: &Row) -> Option<String> {
    let launch = row.running.as_ref()?.launch.as_ref()?;
    Some(names::plain(&launch.kernel))
}

fn part(bytes: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { bytes as f64 / of as f64 }
}

/// A command line without the directory of its program, which fills narrow terminals.
pub(super) fn short_command(command: &str) -> String {
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    format!("{name} {arguments}").trim_end().to_owned()
}

/// A number with three digits or four, and its thousands as a letter.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{value:.0}"),
        value if value < 10_000_000.0 => format!("{:.0}k", value / 1e3),
        value => format!("{:.0}M", value / 1e6),
    }
}

/// Bytes in at most six characters, as `--memory` reads them.
pub(super) fn short(bytes: u64) -> String {
    let mut value = bytes as f64;
    if bytes < 1024 {
        return bytes.to_string();
    }
    for unit in ["K", "M", "G"] {
        value /= 1024.0;
        if value < 1000.0 {
            return format!("{value:.1}{unit}");
        }
    }
    format!("{:.1}T", value / 1024.0)
}

/// Microseconds in at most five characters.
pub(super) fn age(us: u64) -> String {
    match us {
        0..1000 => format!("{us}us"),
        1000..1_000_000 => format!("{}ms", us / 1000),
        1_000_000..100_000_000 => format!("{:.1}s", us as f64 / 1e6),
        100_000_000..6_000_000_000 => format!("{}m", us / 60_000_000),
        _ => format!("{}h", us / 3_600_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(width: u16) -> Vec<&'static str> {
        let shown = fitting(CLIENTS, (width, least_rest(width)), Place::Screen, &Scene::default());
        let fixed: u16 = shown.iter().filter(|it| it.width > 0).map(|it| it.width + 1).sum();
        assert!(fixed + least_rest(width) <= width.max(25), "{width} columns: {fixed} are taken");
        shown.iter().map(|column| column.title).collect()
    }

    #[test]
    fn narrow_terminals_keep_the_process_and_the_command() {
        assert_eq!(titles(20), ["PID", "COMMAND"]);
        assert_eq!(titles(40), ["PID", "BUSY%", "MEM", "STATE", "COMMAND"]);
        for width in 20..300 {
            let titles = titles(width);
            assert_eq!((titles.first(), titles.last()), (Some(&"PID"), Some(&"COMMAND")));
        }
        assert!(titles(80).contains(&"LIMIT") && !titles(80).contains(&"LAST MINUTE"));
        assert!(titles(200).contains(&"LAST MINUTE") && titles(200).contains(&"KERNEL"));
    }

    #[test]
    fn commands_begin_with_their_programs_name() {
        for (command, shown) in [
            ("/usr/bin/python3 train.py --data /srv/x", "python3 train.py --data /srv/x"),
            ("./nbody", "nbody"),
            ("nbody", "nbody"),
            ("", ""),
            ("/odd/ x", "/odd/ x"),
        ] {
            assert_eq!(short_command(command), shown);
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.4, 9999.0, 10_500.0, 12_300_000.0].map(count), ["0", "9999", "10k", "12M"]);
        let sizes = [0, 1023, 1024, 999 << 20, 1023 << 20, 4 << 30, 5 << 40, u64::MAX];
        let shown = sizes.map(short);
        assert_eq!(
            shown[..7],
            ["0", "1023", "1.0K", "999.0M", "1.0G", "4.0G", "5.0T"].map(str::to_owned)
        );
        let read = shown[3].parse::<settings::Memory>().unwrap();
        assert_eq!(read.bytes(), 999 << 20);
        let ages = [999, 1000, 999_999, 1_500_000, 99_000_000, 150_000_000, 8_000_000_000];
        assert_eq!(ages.map(age), ["999us", "1ms", "999ms", "1.5s", "99.0s", "2m", "2h"]);
    }
}
