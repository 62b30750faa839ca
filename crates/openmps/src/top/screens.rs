//! Screens of every size, against those that were looked at and found right: `screens/*.txt`.
//! `OPENMPS_UPDATE_SCREENS=1` writes them; look at each before it is kept.

use std::fmt::Write;
use std::path::Path;

use link::wire::daemon::{ServerStatus, WaitReason};
use link::wire::fault::{CallRecord, LaunchRecord};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::draw::{draw, plain};
use super::keys::{Flow, Page, View};
use super::model::{Gpu, Row, Scene, SortKey};
use super::palette::Palette;
use super::past::Past;

const GIB: u64 = 1 << 30;

/// A GPU with clients of all kinds.
pub(super) fn scene(clients: u32) -> Scene {
    let rows: Vec<Row> = (0..clients).map(row).collect();
    let gpu = Gpu {
        index: 0,
        server_pid: 99,
        name: "NVIDIA H200".into(),
        status: ServerStatus::Active,
        silent: false,
        clients: rows.len(),
        granted_bytes: rows.iter().map(|row| row.granted_bytes).sum(),
        total_bytes: 139 * GIB,
        multiprocessors: 132,
        kernels_per_s: rows.iter().fold(0.0, |sum, row| sum + row.kernels_per_s),
        busy_percent: rows.iter().fold(0.0, |sum, row| sum + row.busy_percent).min(100.0),
        faults: 0,
        restarts: 0,
        last_fault: None,
        past: past(70.0, 60),
    };
    Scene { daemon_pid: 42, gpus: vec![gpu], rows, silences: Vec::new() }
}

fn past(about: f64, seconds: u32) -> Past {
    let mut past = Past::default();
    (0..seconds).for_each(|at| past.add(1.0, about * (0.6 + 0.4 * f64::from(at % 20) / 19.0)));
    past
}

fn call(kernel: &str, age_us: u64) -> CallRecord {
    let kernel = kernel.to_owned();
    let (grid, block) = ([1024, 8, 1], [256, 1, 1]);
    let launch = LaunchRecord { kernel, grid, block, shared_bytes: 0, stream: 3 };
    CallRecord { call: "Launch".into(), launch: Some(launch), age_us }
}

fn row(number: u32) -> Row {
    let of_kind = number % 4;
    let runs = of_kind == 0;
    let groups = [Some("jobs"), None, Some("team-b"), None];
    let commands = [
        "/usr/bin/python3 train.py --data /srv/images --epochs 90",
        "./nbody 65536",
        "/opt/solver/bin/solve --input mesh.h5",
        "jupyter-kernel",
    ];
    Row {
        pid: 4711 + number,
        uid: 1000 + of_kind,
        user: if of_kind == 1 { "1001".into() } else { format!("user{of_kind}") },
        group: groups[of_kind as usize].map(str::to_owned),
        reservation: None,
        server_pid: 99,
        client_id: number.into(),
        gpu: 0,
        domain: String::new(),
        granted_bytes: (u64::from(of_kind) + 1) * GIB / 2,
        limit_bytes: (of_kind < 2).then_some(4 * GIB),
        spilled_bytes: 0,
        multiprocessors: if of_kind == 1 { 32 } else { 132 },
        sm_percent: if of_kind == 1 { 25.0 } else { 100.0 },
        weight: 1 + of_kind,
        latency_class: of_kind == 2,
        kernels: 1_000_000,
        kernels_per_s: [12_345.0, 800.0, 0.0, 0.0][of_kind as usize],
        busy_percent: [62.5, 20.0, 0.0, 0.0][of_kind as usize],
        copied_bytes: 7 * GIB,
        copied_per_s: 1e6,
        queued_bytes: 65_536,
        launch_us: (of_kind < 2).then_some((4, 128)),
        error: if of_kind == 3 { 700 } else { 0 },
        waits_for: [None, Some(WaitReason::Turn), Some(WaitReason::Memory), None][of_kind as usize],
        running: runs.then(|| call("_Z9attentionILi64EEvPKfPf", 1_250_000)),
        launches: if runs {
            vec![
                call("_ZN2at6native4gemmEv", 2_300_000),
                call("_Z9attentionILi64EEvPKfPf", 1_250_000),
            ]
        } else {
            Vec::new()
        },
        fault: (of_kind == 3)
            .then(|| "fault 1 on device 0: an illegal address, of 4714".to_owned()),
        command: commands[of_kind as usize].into(),
        gpu_bytes: 139 * GIB,
        gpu_multiprocessors: 132,
        past: past([62.5, 20.0, 0.0, 0.0][of_kind as usize], 45),
    }
}

pub(super) fn drawn(scene: &Scene, view: &View, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, scene, view)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for cells in buffer.content.chunks(usize::from(buffer.area.width)) {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    text
}

fn view(scene: &Scene) -> View {
    let mut view = View::new(Palette::None);
    view.follow(scene);
    view
}

#[test]
fn screens_of_every_size_are_those_that_were_looked_at() {
    for size in [(40, 10), (80, 24), (200, 50)] {
        let mut screens = String::new();
        let mut add = |what: &str, scene: &Scene, view: &View| {
            writeln!(screens, "==== {what}").unwrap();
            screens.push_str(&text(&drawn(scene, view, size)));
        };
        for clients in [0, 3, 60] {
            let scene = scene(clients);
            add(&format!("{clients} clients"), &scene, &view(&scene));
        }
        let mut many = scene(60);
        many.silences = vec!["server 99 does not answer: what it said last is shown".into()];
        many.gpus[0].silent = true;
        let mut last = view(&many);
        last.selected = 59;
        last.flow = Flow::Paused;
        last.filter = "e".into();
        last.message = Some("client 4711 was terminated".into());
        add("the last of 60 clients, paused, of a silent server", &many, &last);
        for (selected, what) in ["runs", "waits for its turn", "", "failed"].iter().enumerate() {
            let mut details = view(&many);
            (details.page, details.selected) = (Page::Details, selected);
            if !what.is_empty() {
                add(&format!("details of one that {what}"), &many, &details);
            }
        }
        let mut help = view(&many);
        help.page = Page::Help;
        add("help", &many, &help);
        help.scrolled = 1000;
        add("the end of the help", &many, &help);
        compare(&format!("{}x{}.txt", size.0, size.1), &screens);
    }
}

fn compare(name: &str, screens: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/screens").join(name);
    if std::env::var_os("OPENMPS_UPDATE_SCREENS").is_some() {
        std::fs::write(&path, screens).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == screens, "{name} is no longer what is drawn:\n{screens}");
}

/// Every one of many clients can be reached, and the screen says where one is.
#[test]
fn sixty_clients_are_scrolled_through() {
    for size in [(40, 10), (80, 24), (200, 50)] {
        let scene = scene(60);
        for selected in 0..60 {
            let mut view = view(&scene);
            view.selected = selected;
            let buffer = drawn(&scene, &view, size);
            let pid = format!(" {} ", 4711 + selected);
            assert!(text(&buffer).contains(&pid), "{pid} is not on the screen");
        }
    }
}

#[test]
fn colours_are_there_unless_they_are_not_wanted() {
    let scene = scene(3);
    let colours = |palette: Palette| {
        let mut view = View::new(palette);
        view.follow(&scene);
        let buffer = drawn(&scene, &view, (200, 50));
        buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(colours(Palette::Colours) && !colours(Palette::None));
}

#[test]
fn what_is_typed_last_is_seen_on_a_narrow_screen() {
    let scene = scene(3);
    let mut view = view(&scene);
    for letter in "lmemory=4096M sm-percent=33.5 weight=17".chars() {
        let code = ratatui::crossterm::event::KeyCode::Char(letter);
        view.press(code.into(), &scene);
    }
    let shown = text(&drawn(&scene, &view, (40, 10)));
    assert!(shown.ends_with(" sm-percent=33.5 weight=17_\n"), "{shown}");
}

#[test]
fn plain_lines_have_no_escapes_and_no_bars() {
    let mut two = scene(2);
    two.arrange(SortKey::Pid, super::model::Direction::Usual, "");
    let text = plain(&two, &View::new(Palette::Colours), 160);
    assert_eq!(text.lines().count(), 7, "{text}");
    assert!(text.is_ascii() && !text.contains('\u{1b}'), "{text}");
    let line = |with: &str| text.lines().find(|line| line.contains(with)).unwrap();
    let end = |line: &str, word: &str| line.find(word).map(|at| at + word.len()).unwrap();
    let (heading, row) = (line("P50us"), line("train.py"));
    for (title, value) in [("MEM", "512.0M"), ("KERN/S", "12k"), ("PID", "4711")] {
        assert_eq!(end(heading, title), end(row, value), "{title}: {text}");
    }
}
