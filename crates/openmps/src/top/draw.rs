//! A scene on the screen, or as plain lines.

use std::fmt::Write;

use link::wire::daemon::ServerStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as TableRow, Table, TableState};

use super::columns::{Side, aligned, columns, count};
use super::model::{Gpu, Scene, SortKey};
use crate::show::bytes;

/// What the user has set, beside the scene.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) sort: SortKey,
    pub(super) filter: String,
    pub(super) selected: usize,
    /// The last line of the screen, where it is not the keys.
    pub(super) message: Option<String>,
}

const KEYS: &str = "q quit  s sort  / filter  up, down select  t terminate";

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, scene: &Scene, settings: &Settings) {
    let gpus = u16::try_from(scene.gpus.len()).unwrap_or(u16::MAX).clamp(1, 8) + 1;
    // A gap, where nobody is silent.
    let silences = u16::try_from(scene.silences.len()).unwrap_or(u16::MAX).clamp(1, 8);
    let [title, gpu_area, silence_area, client_area, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(gpus),
        Constraint::Length(silences),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(title_text(scene, settings)).style(bold()), title);
    frame.render_widget(gpu_table(scene), gpu_area);
    frame.render_widget(Text::from_iter(scene.silences.iter().map(String::as_str)), silence_area);
    let mut state = TableState::default();
    if !scene.rows.is_empty() {
        state.select(Some(settings.selected.min(scene.rows.len() - 1)));
    }
    let width = client_area.width;
    frame.render_stateful_widget(client_table(scene, width), client_area, &mut state);
    // One line is the heading.
    let shown = usize::from(client_area.height.saturating_sub(1));
    let place = place_text(state.offset(), shown, scene.rows.len());
    let place_width = u16::try_from(place.len()).unwrap_or(u16::MAX);
    let [keys, right] =
        Layout::horizontal([Constraint::Min(1), Constraint::Length(place_width)]).areas(footer);
    frame.render_widget(Line::from(settings.message.as_deref().unwrap_or(KEYS)), keys);
    frame.render_widget(Line::from(place), right);
}

/// Which rows are on the screen, where that is not all of them.
fn place_text(offset: usize, shown: usize, rows: usize) -> String {
    if rows <= shown {
        return String::new();
    }
    format!("{}-{} of {rows}", offset + 1, rows.min(offset + shown))
}

fn bold() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

fn title_text(scene: &Scene, settings: &Settings) -> String {
    let mut text = format!(
        "openmps top: daemon {}, {} client(s) shown, by {}",
        scene.daemon_pid,
        scene.rows.len(),
        settings.sort.name()
    );
    if !settings.filter.is_empty() {
        let _ = write!(text, ", filter `{}`", settings.filter); // Writing to a String cannot fail.
    }
    text
}

const GPU_TITLES: [&str; 9] =
    ["GPU", "SERVER", "STATUS", "CLIENTS", "BUSY%", "KERN/S", "MEMORY", "FAULTS", "NAME"];
/// The name takes what is left.
const GPU_WIDTHS: [u16; 9] = [3, 7, 6, 7, 6, 6, 15, 6, 0];
const GPU_SIDES: [Side; 9] = [
    Side::Right,
    Side::Right,
    Side::Left,
    Side::Right,
    Side::Right,
    Side::Right,
    Side::Right,
    Side::Right,
    Side::Left,
];

fn gpu_headings() -> [String; 9] {
    std::array::from_fn(|at| aligned(GPU_TITLES[at], GPU_WIDTHS[at], GPU_SIDES[at]))
}

fn gpu_cells(gpu: &Gpu) -> [String; 9] {
    let status = match gpu.status {
        _ if gpu.silent => "SILENT",
        ServerStatus::Initializing => "INIT",
        ServerStatus::Active => "ACTIVE",
        ServerStatus::Fault => "FAULT",
    };
    let texts = [
        gpu.index.to_string(),
        gpu.server_pid.to_string(),
        status.to_owned(),
        gpu.clients.to_string(),
        format!("{:.1}", gpu.busy_percent),
        count(gpu.kernels_per_s),
        format!("{}/{}", short(gpu.granted_bytes), short(gpu.total_bytes)),
        gpu.faults.to_string(),
        format!("{} ({} SMs, {} restarts)", gpu.name, gpu.multiprocessors, gpu.restarts),
    ];
    std::array::from_fn(|at| aligned(&texts[at], GPU_WIDTHS[at], GPU_SIDES[at]))
}

/// The latest fault of each GPU that had one.
fn fault_lines(scene: &Scene) -> impl Iterator<Item = &str> {
    scene.gpus.iter().filter_map(|gpu| gpu.last_fault.as_deref())
}

/// Bytes without the space.
fn short(count: u64) -> String {
    bytes(count).replace(' ', "")
}

fn gpu_table(scene: &Scene) -> Table<'_> {
    let rows = scene.gpus.iter().map(|gpu| {
        let style = match gpu.status {
            ServerStatus::Fault => Style::default().fg(Color::Red),
            _ if gpu.silent => Style::default().fg(Color::Yellow),
            _ => Style::default(),
        };
        TableRow::new(gpu_cells(gpu).map(Cell::from)).style(style)
    });
    let widths = GPU_WIDTHS.map(constraint);
    Table::new(rows, widths).header(TableRow::new(gpu_headings()).style(bold()))
}

fn constraint(width: u16) -> Constraint {
    if width == 0 { Constraint::Min(10) } else { Constraint::Length(width) }
}

fn client_table(scene: &Scene, terminal_width: u16) -> Table<'_> {
    let columns = columns(terminal_width);
    let rows = scene.rows.iter().map(|row| {
        let style = match row.error {
            0 => Style::default(),
            _ => Style::default().fg(Color::Red),
        };
        TableRow::new(columns.iter().map(|column| Cell::from(column.cell(row)))).style(style)
    });
    let widths = columns.iter().map(|column| constraint(column.width));
    Table::new(rows, widths)
        .header(TableRow::new(columns.iter().map(|column| column.heading())).style(bold()))
        .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED))
}

/// The scene as lines without colour, for `--once`.
pub(super) fn plain(scene: &Scene, settings: &Settings, width: u16) -> String {
    let mut text = title_text(scene, settings);
    text.push('\n');
    push_line(&mut text, gpu_headings());
    for gpu in &scene.gpus {
        push_line(&mut text, gpu_cells(gpu));
    }
    for line in fault_lines(scene) {
        push_line(&mut text, [line.to_owned()]);
    }
    text.push('\n');
    let columns = columns(width);
    push_line(&mut text, columns.iter().map(|column| column.heading()));
    for row in &scene.rows {
        push_line(&mut text, columns.iter().map(|column| column.cell(row)));
    }
    text
}

fn push_line(text: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    text.push_str(cells.join(" ").trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::model::Row;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn scene(clients: u32) -> Scene {
        let row = |pid| Row {
            pid,
            uid: 1000,
            server_pid: 99,
            gpu: 0,
            domain: String::new(),
            granted_bytes: 3 << 30,
            limit_bytes: Some(4 << 30),
            spilled_bytes: 0,
            multiprocessors: 33,
            kernels_per_s: 123_456.0,
            busy_percent: 98.7,
            copied_per_s: 1e9,
            queued_bytes: 65_536,
            launch_us: Some((4, 128)),
            error: 0,
            command: "python train.py --with many --arguments".into(),
        };
        let gpu = Gpu {
            index: 0,
            server_pid: 99,
            name: "NVIDIA H200".into(),
            status: ServerStatus::Active,
            silent: false,
            clients: clients as usize,
            granted_bytes: 3 << 30,
            total_bytes: 139 << 30,
            multiprocessors: 132,
            kernels_per_s: 1e6,
            busy_percent: 100.0,
            faults: 0,
            last_fault: None,
            restarts: 0,
        };
        let rows = (100..100 + clients).map(row).collect();
        Scene { daemon_pid: 1, gpus: vec![gpu], rows, silences: Vec::new() }
    }

    fn screen(width: u16, clients: u32, selected: usize) -> String {
        screen_of(&scene(clients), width, selected)
    }

    fn screen_of(scene: &Scene, width: u16, selected: usize) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        let settings =
            Settings { sort: SortKey::Busy, filter: String::new(), selected, message: None };
        terminal.draw(|frame| draw(frame, scene, &settings)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn screens_of_every_width_show_the_clients() {
        for width in [80, 200] {
            for clients in [0, 1, 60] {
                let screen = screen(width, clients, 0);
                assert!(screen.contains("NVIDIA H200") || width == 80, "{screen}");
                assert!(screen.contains("KERN/S") && screen.contains("q quit"), "{screen}");
                assert_eq!(screen.contains("python"), clients > 0, "{screen}");
            }
        }
        assert!(screen(200, 1, 0).contains("4.0 GiB"), "limits are shown where there is room");
    }

    /// What was looked at in a terminal: every one of many clients can be reached, and the screen says where one is.
    #[test]
    fn sixty_clients_are_scrolled_through() {
        for width in [80, 200] {
            let (first, last) = (screen(width, 60, 0), screen(width, 60, 59));
            // 24 lines less title, GPUs, gap, heading and keys.
            assert!(first.contains("1-18 of 60"), "{first}");
            assert!(last.contains("43-60 of 60"), "{last}");
            for selected in 0..60 {
                let pid = format!(" {} ", 100 + selected);
                assert!(screen(width, 60, selected).contains(&pid), "{pid} is not on the screen");
            }
            assert!(!screen(width, 1, 0).contains(" of "), "all are shown");
        }
    }

    #[test]
    fn a_silent_server_is_said_to_be_silent_above_its_clients() {
        let mut scene = scene(60);
        scene.gpus[0].silent = true;
        scene.silences = vec!["server 99 does not answer".into(), "nor does server 98".into()];
        for width in [80, 200] {
            let screen = screen_of(&scene, width, 0);
            assert!(screen.contains("SILENT") && !screen.contains("ACTIVE"), "{screen}");
            let line = |with: &str| screen.lines().position(|line| line.contains(with));
            let said = [
                line("NVIDIA H200"),
                line("server 99 does not answer"),
                line("nor does server 98"),
                line("P50us"),
            ];
            assert!(said.iter().all(Option::is_some) && said.is_sorted(), "{screen}");
            // Two lines instead of the gap's one.
            assert!(screen.contains("1-17 of 60"), "{screen}");
        }
    }

    #[test]
    fn numbers_stand_on_the_right() {
        let screen = screen(80, 1, 0);
        let line = |with: &str| screen.lines().find(|line| line.contains(with)).unwrap();
        let end = |line: &str, word: &str| line.find(word).map(|at| at + word.len()).unwrap();
        let (heading, row) = (line("P50us"), line("python"));
        for (title, value) in [("MEMORY", "3.0 GiB"), ("KERN/S", "123k"), ("PID", "100")] {
            assert_eq!(end(heading, title), end(row, value), "{title}: {screen}");
        }
    }

    #[test]
    fn the_selected_client_is_scrolled_into_view() {
        assert!(!screen(80, 60, 0).contains("159 "));
        assert!(screen(80, 60, 59).contains("159 "));
    }

    #[test]
    fn plain_lines_have_no_escapes() {
        let settings =
            Settings { sort: SortKey::Pid, filter: String::new(), selected: 0, message: None };
        let text = plain(&scene(2), &settings, 80);
        assert!(text.lines().count() == 7 && !text.contains('\u{1b}'), "{text}");
    }
}
