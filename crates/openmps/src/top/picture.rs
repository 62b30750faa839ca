//! The screen as a picture for the documents: what [`super::draw`] makes of `docs/data/top.json`,
//! as SVG for light and dark pages. A test fails when `docs/pictures/top.svg` is another one;
//! `OPENMPS_UPDATE_PICTURES=1` writes it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use link::wire::ui::DaemonState;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use serde::Deserialize;

use super::keys::View;
use super::model::{Direction, SortKey, scene};
use super::palette::Palette;
use super::past::Pasts;
use super::screens::drawn;
use super::users::Users;

/// Columns and lines of the picture.
const SIZE: (u16, u16) = (146, 13);
/// Of a cell, in tenths of a pixel, and where its text's base line is.
const CELL_WIDTH: u32 = 70;
const CELL_HEIGHT: u32 = 170;
const BASE: u32 = 125;
const MARGIN: u32 = 120;

/// A recording of looks at a daemon.
#[derive(Deserialize)]
struct Recording {
    users: BTreeMap<u32, String>,
    looks: Vec<Look>,
}

#[derive(Deserialize)]
struct Look {
    at_s: f64,
    state: DaemonState,
}

fn of_the_documents() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/data/top.json")).unwrap();
    let recording: Recording = serde_json::from_str(&text).unwrap();
    let passwd: String =
        recording.users.iter().map(|(uid, name)| format!("{name}:x:{uid}:0\n")).collect();
    let (users, mut pasts) = (Users::parse(&passwd), Pasts::default());
    let mut last = None;
    for pair in recording.looks.windows(2) {
        let seconds = pair[1].at_s - pair[0].at_s;
        let elapsed = Duration::from_secs_f64(seconds);
        let mut scene = scene(Some(&pair[0].state), &pair[1].state, elapsed, &users);
        pasts.note(&mut scene, seconds);
        last = Some(scene);
    }
    let mut scene = last.unwrap();
    scene.arrange(SortKey::Busy, Direction::Usual, "");
    let mut view = View::new(Palette::Colours);
    view.follow(&scene);
    svg(&drawn(&scene, &view, SIZE))
}

/// Colours by class: of light pages, of dark pages.
const COLOURS: &[(&str, &str, &str)] = &[
    ("paper", "#ffffff", "#0d1117"),
    ("ink", "#1f2328", "#e6edf3"),
    ("soft", "#59636e", "#9198a1"),
    ("good", "#00704f", "#2fbf94"),
    ("warning", "#8a6100", "#f0e442"),
    ("bad", "#a84a00", "#f0a060"),
    ("busy", "#0072b2", "#56b4e9"),
    ("memory", "#a3487c", "#d98cb8"),
];

fn class(colour: Color) -> &'static str {
    match colour {
        Color::DarkGray => "soft",
        Color::Green => "good",
        Color::Yellow => "warning",
        Color::Red => "bad",
        Color::Cyan => "busy",
        Color::Magenta => "memory",
        _ => "ink",
    }
}

fn style() -> String {
    let rules = |colour: fn(&(&str, &'static str, &'static str)) -> &'static str| -> String {
        COLOURS.iter().map(|it| format!(".{}{{fill:{}}}", it.0, colour(it))).collect()
    };
    format!(
        "text{{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:12px;\
         white-space:pre}}.bold{{font-weight:600}}\n{}\n@media (prefers-color-scheme:dark){{{}}}",
        rules(|it| it.1),
        rules(|it| it.2)
    )
}

/// Tenths of a pixel.
fn px(tenths: u32) -> String {
    match tenths % 10 {
        0 => format!("{}", tenths / 10),
        rest => format!("{}.{rest}", tenths / 10),
    }
}

fn svg(buffer: &Buffer) -> String {
    let (width, height) = (u32::from(buffer.area.width), u32::from(buffer.area.height));
    let (all_width, all_height) =
        (px(width * CELL_WIDTH + 2 * MARGIN), px(height * CELL_HEIGHT + 2 * MARGIN));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all_width}\" height=\"{all_height}\" \
         viewBox=\"0 0 {all_width} {all_height}\" role=\"img\">\n\
         <title>openmps top</title>\n\
         <desc>The terminal with the GPU and its clients: GPU time, memory, state and kernels</desc>\n\
         <style>\n{}\n</style>\n\
         <rect class=\"paper\" width=\"{all_width}\" height=\"{all_height}\" rx=\"6\"/>\n",
        style()
    );
    for (line, cells) in (0..).zip(buffer.content.chunks(width as usize)) {
        push_line(&mut svg, MARGIN + line * CELL_HEIGHT, cells);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Cells of one style become one text; those of bars, which every font draws in its own way, become
/// boxes.
fn push_line(svg: &mut String, top: u32, cells: &[Cell]) {
    let is_alike = |a: &Cell, b: &Cell| {
        (a.fg, a.modifier) == (b.fg, b.modifier) && block(a).is_none() && block(b).is_none()
    };
    let mut at = 0;
    for run in cells.chunk_by(is_alike) {
        let (left, length) = (MARGIN + at * CELL_WIDTH, run.len() as u32);
        at += length;
        let is_reversed = run[0].modifier.contains(Modifier::REVERSED);
        if is_reversed {
            // Half a pixel more, so that no line is seen between two.
            push_box(svg, "ink", (left, top), (length * CELL_WIDTH + 5, CELL_HEIGHT));
        }
        let class = if is_reversed { "paper" } else { class(run[0].fg) };
        if let Some(block) = block(&run[0]) {
            let (across, up) = block;
            // There is a gap to the next line.
            let (width, height) = (CELL_WIDTH * across / 8, (CELL_HEIGHT - 40) * up / 8);
            push_box(svg, class, (left, top + CELL_HEIGHT - 20 - height), (width, height));
            continue;
        }
        push_texts(svg, class, run, (left, top + BASE));
    }
}

/// Words of a run, each in its place: a font that is wider or narrower than the cells moves no
/// column.
fn push_texts(svg: &mut String, class: &str, run: &[Cell], (left, base): (u32, u32)) {
    let bold = if run[0].modifier.contains(Modifier::BOLD) { " bold" } else { "" };
    let mut at = 0;
    for word in run.chunk_by(|a, b| (a.symbol() == " ") == (b.symbol() == " ")) {
        let (x, length) = (left + at * CELL_WIDTH, word.len() as u32);
        at += length;
        if word[0].symbol() == " " {
            continue;
        }
        let text: String = word.iter().map(Cell::symbol).collect();
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        writeln!(
            svg,
            "<text class=\"{class}{bold}\" x=\"{}\" y=\"{}\" textLength=\"{}\" \
             lengthAdjust=\"spacingAndGlyphs\">{text}</text>",
            px(x),
            px(base),
            px(length * CELL_WIDTH)
        )
        .unwrap();
    }
}

fn push_box(svg: &mut String, class: &str, (x, y): (u32, u32), (width, height): (u32, u32)) {
    writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
        px(x),
        px(y),
        px(width),
        px(height)
    )
    .unwrap();
}

/// Eighths of a cell that a character of a bar fills: across, and upwards.
fn block(cell: &Cell) -> Option<(u32, u32)> {
    let character = cell.symbol().chars().next()?;
    match character {
        '█' => Some((8, 8)),
        '▁'..='▇' => Some((8, character as u32 - '▁' as u32 + 1)),
        '▉'..='▏' => Some(('▏' as u32 - character as u32 + 1, 8)),
        _ => None,
    }
}

#[test]
fn the_picture_is_what_the_renderer_makes_of_the_data() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/top.svg");
    let drawn = of_the_documents();
    if std::env::var_os("OPENMPS_UPDATE_PICTURES").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == drawn,
        "docs/pictures/top.svg is not made of docs/data/top.json: run \
         `OPENMPS_UPDATE_PICTURES=1 cargo test -p openmps top::picture`, and look at it"
    );
}
