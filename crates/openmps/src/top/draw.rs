//! A scene on the screen, or as plain lines.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row as TableRow, Table, TableState};

use super::columns::{CLIENTS, Column, GPUS, Place, fitting, least_rest};
use super::details;
use super::keys::{Flow, Page, View};
use super::model::{Direction, Scene};
use super::palette::{Palette, Tone, bold};

/// Lines of the screen that GPUs take at most, their heading beside.
const MOST_GPUS: usize = 8;

/// Below this width titles are short.
const NARROW: u16 = 60;

/// The keys that the last line tells of, as many as there is room for.
const KEYS: [&str; 3] = [
    "? help  q quit  Enter details  s sort  / filter  p pause  l limit  t terminate",
    "? help  q quit  Enter details  s sort  / filter",
    "? help  q quit",
];
const KEYS_OF_PAGES: [&str; 2] = ["Esc back  q quit  up, down scroll", "Esc back  q quit"];

const HELP: &[(&str, &str)] = &[
    ("up, down", "select a client (also k, j, PgUp, PgDn, Home, End)"),
    ("Enter", "its details and last kernels; Esc goes back"),
    ("s, r", "sort by the next column; reverse the order"),
    ("/", "show clients whose command, user or group has these letters"),
    ("p, space", "pause and go on"),
    ("l", "new limits for the client, after a question"),
    ("t", "terminate the client, after a question"),
    ("q", "quit"),
    ("", ""),
    ("BUSY%", "time of the client's kernels over time, by estimate"),
    ("MEM, LIMIT", "memory that it has of the GPU, and may have"),
    ("SMS", "multiprocessors that its kernels may use"),
    ("STATE", "runs: a kernel has not ended; idle: none is known"),
    ("", "turn: others have the GPU; memory: others have it"),
    ("", "recovery: after a fault of another; E700: it has failed"),
    ("AGE", "since the running kernel was submitted"),
    ("P50us", "half of its launches took the driver no longer"),
];

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, scene: &Scene, view: &View) {
    let [title, rest, footer] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(title_line(scene, view, title.width), title);
    let (keys, place) = match view.page {
        Page::Clients => (&KEYS[..], draw_clients(frame, scene, view, rest)),
        Page::Help => (&KEYS_OF_PAGES[..], draw_text(frame, help(rest.width), view, rest)),
        Page::Details => {
            let lines = match view.row(scene) {
                Some(row) => details::lines(row, view.palette, rest.width),
                None => vec![Line::from("the client is gone: Esc goes back")],
            };
            (&KEYS_OF_PAGES[..], draw_text(frame, lines, view, rest))
        }
    };
    draw_footer(frame, view, keys, &place, footer);
}

fn draw_footer(frame: &mut Frame<'_>, view: &View, keys: &[&'static str], place: &str, area: Rect) {
    let place_width = u16::try_from(place.len()).unwrap_or(u16::MAX);
    let [left, right] =
        Layout::horizontal([Constraint::Min(1), Constraint::Length(place_width)]).areas(area);
    let line = match (view.prompt(), &view.message) {
        (Some(prompt), _) => Line::styled(the_end_of(prompt, left.width), bold()),
        (None, Some(message)) => Line::styled(message.clone(), view.palette.style(Tone::Warning)),
        (None, None) => {
            let fits = |keys: &&&str| keys.len() <= left.width.into();
            let keys = keys.iter().find(fits).copied().unwrap_or_default();
            Line::styled(keys, view.palette.style(Tone::Soft))
        }
    };
    frame.render_widget(line, left);
    frame.render_widget(Line::from(place), right);
}

/// What was typed last is seen, and a question's answers are.
fn the_end_of(prompt: String, width: u16) -> String {
    let excess = prompt.chars().count().saturating_sub(width.into());
    if excess == 0 {
        return prompt;
    }
    let end: String = prompt.chars().skip(excess + 1).collect();
    format!("…{end}")
}

fn draw_clients(frame: &mut Frame<'_>, scene: &Scene, view: &View, area: Rect) -> String {
    // Of a low screen, clients have the larger part.
    let most_gpus = MOST_GPUS.min(usize::from(area.height / 3).max(1));
    let gpus = scene.gpus.len().clamp(1, most_gpus);
    let troubles = troubles(scene, view);
    // A gap, where there are none.
    let silences = troubles.len().clamp(usize::from(area.height > 10), MOST_GPUS);
    let [gpu_area, silence_area, client_area] = Layout::vertical([
        Constraint::Length(gpus as u16 + 1),
        Constraint::Length(silences as u16),
        Constraint::Min(1),
    ])
    .areas(area);
    let table = table(GPUS, &scene.gpus, (scene, view.palette), gpu_area.width);
    frame.render_widget(table, gpu_area);
    frame.render_widget(Text::from(troubles), silence_area);
    let mut state = TableState::default();
    if scene.rows.is_empty() {
        let why = match view.filter.as_str() {
            "" => ["no client has a context:", "`openmps run` starts programs"],
            _ => ["no client fits the filter:", "/ and Esc show all"],
        };
        let soft = view.palette.style(Tone::Soft);
        frame.render_widget(Text::from_iter(why).style(soft), client_area);
        return String::new();
    }
    state.select(Some(view.selected));
    let clients = table_of_clients(scene, view.palette, client_area.width);
    frame.render_stateful_widget(clients, client_area, &mut state);
    // One line is the heading.
    let shown = usize::from(client_area.height.saturating_sub(1));
    place_text(state.offset(), shown, scene.rows.len())
}

fn troubles(scene: &Scene, view: &View) -> Vec<Line<'static>> {
    let silences = scene.silences.iter().chain(&view.trouble);
    silences.map(|text| Line::styled(text.clone(), view.palette.style(Tone::Warning))).collect()
}

fn table_of_clients(scene: &Scene, palette: Palette, width: u16) -> Table<'static> {
    table(CLIENTS, &scene.rows, (scene, palette), width)
        .row_highlight_style(Style::default().add_modifier(Modifier::REVERSED))
}

fn table<T>(
    all: &'static [Column<T>],
    lines: &[T],
    (scene, palette): (&Scene, Palette),
    width: u16,
) -> Table<'static> {
    let columns = fitting(all, (width, least_rest(width)), Place::Screen, scene);
    let rows = lines.iter().map(|line| {
        TableRow::new(columns.iter().map(|column| Cell::from(column.cell(line, palette))))
    });
    let widths = columns.iter().map(|column| match column.width {
        0 => Constraint::Min(1),
        width => Constraint::Length(width),
    });
    let headings = columns.iter().map(|column| column.heading());
    Table::new(rows, widths).header(TableRow::new(headings).style(bold()))
}

/// Which rows are on the screen, where that is not all of them.
fn place_text(offset: usize, shown: usize, rows: usize) -> String {
    if rows <= shown {
        return String::new();
    }
    format!(" {}-{} of {rows}", offset + 1, rows.min(offset + shown))
}

fn help(width: u16) -> Vec<Line<'static>> {
    HELP.iter().flat_map(|(what, told)| details::flowed(what, Vec::new(), told, width)).collect()
}

/// A page of lines; says which of them are seen, where that is not all.
fn draw_text(frame: &mut Frame<'_>, lines: Vec<Line<'static>>, view: &View, area: Rect) -> String {
    let (count, height) = (lines.len(), usize::from(area.height));
    // The last page stays full.
    let skipped = usize::from(view.scrolled).min(count.saturating_sub(height));
    frame.render_widget(Text::from_iter(lines.into_iter().skip(skipped)), area);
    place_text(skipped, height, count)
}

fn title_line(scene: &Scene, view: &View, width: u16) -> Line<'static> {
    let name = if width < NARROW { "" } else { "openmps top: " };
    let clients = scene.rows.len();
    let clients = format!("{name}{clients} client{}", if clients == 1 { "" } else { "s" });
    let mut spans = vec![Span::styled(clients, bold())];
    if view.flow == Flow::Paused {
        spans.push(view.palette.span(" PAUSED", Tone::Warning).bold());
    }
    if !view.filter.is_empty() {
        spans.push(format!(" with `{}`", view.filter).into());
    }
    let direction = match view.direction {
        Direction::Usual => "",
        Direction::Reversed => ", reversed",
    };
    spans.push(format!(", by {}{direction}", view.sort.name()).into());
    Line::from(spans)
}

/// The scene as lines without colour, for `--once`.
pub(super) fn plain(scene: &Scene, view: &View, width: u16) -> String {
    let mut text = format!("daemon {}, {}\n", scene.daemon_pid, title_line(scene, view, width));
    push_table(&mut text, GPUS, &scene.gpus, scene, width);
    for line in scene.gpus.iter().filter_map(|gpu| gpu.last_fault.as_deref()) {
        push_line(&mut text, [line.to_owned()]);
    }
    text.push('\n');
    push_table(&mut text, CLIENTS, &scene.rows, scene, width);
    text
}

fn push_table<T>(
    text: &mut String,
    all: &'static [Column<T>],
    lines: &[T],
    scene: &Scene,
    width: u16,
) {
    let columns = fitting(all, (width, least_rest(width)), Place::Everywhere, scene);
    push_line(text, columns.iter().map(|column| column.plain(&column.heading())));
    for line in lines {
        let cells = columns.iter().map(|column| column.plain(&column.cell(line, Palette::None)));
        push_line(text, cells);
    }
}

fn push_line(text: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    text.push_str(cells.join(" ").trim_end());
    text.push('\n');
}
