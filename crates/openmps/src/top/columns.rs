//! The columns of the client table: what each shows, and from which width of the terminal on.

use super::model::Row;
use crate::show::bytes;

/// One column.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: u16,
    side: Side,
    /// Terminals narrower than this go without it.
    from_width: u16,
    text: fn(&Row) -> String,
}

/// Where a cell's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

impl Column {
    pub(super) fn heading(&self) -> String {
        aligned(self.title, self.width, self.side)
    }

    pub(super) fn cell(&self, row: &Row) -> String {
        aligned(&(self.text)(row), self.width, self.side)
    }
}

/// The text on its side of a cell; a cell of width 0 takes what is left of the line.
pub(super) fn aligned(text: &str, width: u16, side: Side) -> String {
    let width = usize::from(width);
    match side {
        Side::Left => format!("{text:<width$}"),
        Side::Right => format!("{text:>width$}"),
    }
}

const COLUMNS: &[Column] = &[
    Column {
        title: "PID",
        width: 8,
        side: Side::Right,
        from_width: 0,
        text: |row| row.pid.to_string(),
    },
    Column {
        title: "USER",
        width: 6,
        side: Side::Right,
        from_width: 100,
        text: |row| row.uid.to_string(),
    },
    Column {
        title: "SERVER",
        width: 8,
        side: Side::Right,
        from_width: 130,
        text: |row| row.server_pid.to_string(),
    },
    Column {
        title: "GPU",
        width: 3,
        side: Side::Right,
        from_width: 0,
        text: |row| row.gpu.to_string(),
    },
    Column {
        title: "DOMAIN",
        width: 12,
        side: Side::Left,
        from_width: 160,
        text: |row| row.domain.chars().take(12).collect(),
    },
    Column {
        title: "BUSY%",
        width: 6,
        side: Side::Right,
        from_width: 0,
        text: |row| format!("{:.1}", row.busy_percent),
    },
    Column {
        title: "KERN/S",
        width: 8,
        side: Side::Right,
        from_width: 0,
        text: |row| count(row.kernels_per_s),
    },
    Column {
        title: "MEMORY",
        width: 10,
        side: Side::Right,
        from_width: 0,
        text: |row| bytes(row.granted_bytes),
    },
    Column {
        title: "LIMIT",
        width: 10,
        side: Side::Right,
        from_width: 100,
        text: |row| row.limit_bytes.map_or_else(|| "-".to_owned(), bytes),
    },
    Column {
        title: "SPILLED",
        width: 10,
        side: Side::Right,
        from_width: 170,
        text: |row| match row.spilled_bytes {
            0 => "-".to_owned(),
            spilled => bytes(spilled),
        },
    },
    Column {
        title: "SMS",
        width: 4,
        side: Side::Right,
        from_width: 90,
        text: |row| row.multiprocessors.to_string(),
    },
    Column {
        title: "COPY/S",
        width: 10,
        side: Side::Right,
        from_width: 120,
        text: |row| bytes(row.copied_per_s as u64),
    },
    Column {
        title: "QUEUED",
        width: 9,
        side: Side::Right,
        from_width: 140,
        text: |row| bytes(row.queued_bytes),
    },
    Column {
        title: "P50us",
        width: 6,
        side: Side::Right,
        from_width: 0,
        text: |row| row.launch_us.map_or_else(|| "-".to_owned(), |(p50, _)| format!("<{p50}")),
    },
    Column {
        title: "P99us",
        width: 6,
        side: Side::Right,
        from_width: 0,
        text: |row| row.launch_us.map_or_else(|| "-".to_owned(), |(_, p99)| format!("<{p99}")),
    },
    Column {
        title: "STATE",
        width: 6,
        side: Side::Left,
        from_width: 0,
        text: |row| if row.error == 0 { "ok".to_owned() } else { format!("E{}", row.error) },
    },
    Column {
        title: "COMMAND",
        width: 0,
        side: Side::Left,
        from_width: 0,
        text: |row| short_command(&row.command),
    },
];

/// A command line without the directory of its program, which fills narrow terminals.
fn short_command(command: &str) -> String {
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    format!("{name} {arguments}").trim_end().to_owned()
}

/// Those that a terminal of this width has room for; the last takes what is left.
pub(super) fn columns(terminal_width: u16) -> Vec<&'static Column> {
    COLUMNS.iter().filter(|column| column.from_width <= terminal_width).collect()
}

/// A number with three digits or four, and its thousands as a letter.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{value:.0}"),
        value if value < 10_000_000.0 => format!("{:.0}k", value / 1e3),
        value => format!("{:.0}M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_terminals_keep_room_for_the_command() {
        for width in [80, 100, 120, 200] {
            let fixed: u16 = columns(width).iter().map(|column| column.width + 1).sum();
            assert!(fixed + 15 <= width, "{width} columns: {fixed} are taken");
        }
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
    fn counts_are_short() {
        assert_eq!([0.4, 9999.0, 10_500.0, 12_300_000.0].map(count), ["0", "9999", "10k", "12M"]);
    }
}
