//! `openmps top`: GPUs and clients, live.
//!
//! [`model`] makes a scene of two looks at the daemon, [`draw`] shows it; here are the keys and the clock.

mod columns;
mod draw;
mod model;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control::directories::Directories;
use control::frontend::Frontend;
use link::wire::ui::DaemonState;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cli::Top;
use draw::{Settings, draw, plain};
use model::{Scene, SortKey, scene};

/// Width of plain output that goes to no terminal.
const PLAIN_WIDTH: u16 = 160;

/// Runs until the user has seen enough.
///
/// # Errors
/// No daemon; a terminal that cannot be drawn on.
pub(crate) fn top(options: &Top) -> anyhow::Result<ExitCode> {
    let interval = Duration::from_secs_f64(options.interval);
    let mut watch = Watch::start()?;
    if options.once || options.json || !stdout().is_terminal() {
        std::thread::sleep(interval);
        watch.look()?;
        watch.scene.silences.iter().for_each(|silence| eprintln!("{silence}"));
        if options.json {
            crate::show::print_json(watch.arranged(&Settings::new()))?;
            return Ok(ExitCode::SUCCESS);
        }
        let width = ratatui::crossterm::terminal::size().map_or(PLAIN_WIDTH, |(width, _)| width);
        let width = if stdout().is_terminal() { width } else { PLAIN_WIDTH };
        let settings = Settings::new();
        print!("{}", plain(&watch.arranged(&settings), &settings, width));
        return Ok(ExitCode::SUCCESS);
    }
    // A panic restores the terminal too.
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, &mut watch, interval);
    ratatui::restore();
    result
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    watch: &mut Watch,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::new();
    let mut entry = Entry::Keys;
    loop {
        let scene = watch.arranged(&settings);
        settings.message = entry.prompt(&settings).or(settings.message.take());
        terminal.draw(|frame| draw(frame, &scene, &settings))?;
        let next_look = watch.looked + interval;
        if event::poll(next_look.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                settings.message = None;
                match press(key, &scene, &mut settings, &mut entry) {
                    Pressed::Quit => return Ok(ExitCode::SUCCESS),
                    Pressed::Terminate { server_pid, pid } => {
                        settings.message = Some(watch.terminate(server_pid, pid)?);
                    }
                    Pressed::Nothing => {}
                }
            }
        } else {
            watch.look()?;
        }
    }
}

/// What keys mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Commands.
    Keys,
    /// Letters of the filter.
    Filter,
    /// The answer to whether this client is to be terminated.
    Confirm { server_pid: u32, pid: u32 },
}

impl Entry {
    fn prompt(self, settings: &Settings) -> Option<String> {
        match self {
            Self::Keys => None,
            Self::Filter => Some(format!("filter: {}_  (Enter: done, Esc: none)", settings.filter)),
            Self::Confirm { pid, .. } => {
                Some(format!("terminate client {pid}? y: yes, any other key: no"))
            }
        }
    }
}

/// What a key asked for.
#[derive(Debug, PartialEq, Eq)]
enum Pressed {
    Nothing,
    Quit,
    Terminate { server_pid: u32, pid: u32 },
}

fn press(key: KeyEvent, scene: &Scene, settings: &mut Settings, entry: &mut Entry) -> Pressed {
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return Pressed::Quit;
    }
    match (*entry, key.code) {
        (Entry::Filter, KeyCode::Esc) => {
            settings.filter.clear();
            *entry = Entry::Keys;
        }
        (Entry::Filter, KeyCode::Enter) => *entry = Entry::Keys,
        (Entry::Filter, KeyCode::Backspace) => drop(settings.filter.pop()),
        (Entry::Filter, KeyCode::Char(letter)) => settings.filter.push(letter),
        (Entry::Confirm { server_pid, pid }, code) => {
            *entry = Entry::Keys;
            if code == KeyCode::Char('y') {
                return Pressed::Terminate { server_pid, pid };
            }
        }
        (Entry::Keys, KeyCode::Char('q') | KeyCode::Esc) => return Pressed::Quit,
        (Entry::Keys, KeyCode::Char('s')) => settings.sort = settings.sort.next(),
        (Entry::Keys, KeyCode::Char('/')) => *entry = Entry::Filter,
        (Entry::Keys, KeyCode::Up) => settings.selected = settings.selected.saturating_sub(1),
        (Entry::Keys, KeyCode::Down) => {
            settings.selected = (settings.selected + 1).min(scene.rows.len().saturating_sub(1));
        }
        (Entry::Keys, KeyCode::Char('t')) => {
            let selected = settings.selected.min(scene.rows.len().saturating_sub(1));
            if let Some(row) = scene.rows.get(selected) {
                *entry = Entry::Confirm { server_pid: row.server_pid, pid: row.pid };
            }
        }
        _ => {}
    }
    Pressed::Nothing
}

impl Settings {
    fn new() -> Self {
        Self { sort: SortKey::Busy, filter: String::new(), selected: 0, message: None }
    }
}

/// The daemon, looked at again and again.
struct Watch {
    frontend: Frontend,
    now: DaemonState,
    looked: Instant,
    scene: Scene,
}

impl Watch {
    fn start() -> anyhow::Result<Self> {
        let mut frontend = Frontend::connect(&Directories::from_environment())?;
        let now = frontend.state()?;
        let scene = scene(None, &now, Duration::ZERO);
        Ok(Self { frontend, now, looked: Instant::now(), scene })
    }

    fn look(&mut self) -> anyhow::Result<()> {
        let state = self.frontend.state()?;
        let at = Instant::now();
        self.scene = scene(Some(&self.now), &state, at - self.looked);
        (self.now, self.looked) = (state, at);
        Ok(())
    }

    fn arranged(&self, settings: &Settings) -> Scene {
        let mut scene = self.scene.clone();
        scene.arrange(settings.sort, &settings.filter);
        scene
    }

    /// Ends a client, and says in a line what came of it.
    fn terminate(&mut self, server_pid: u32, pid: u32) -> anyhow::Result<String> {
        let answer = self.frontend.command(&format!("terminate_client {server_pid} {pid}"))?;
        let complaint = answer.error.lines().next().unwrap_or_default();
        Ok(match complaint {
            "" => format!("client {pid} was terminated"),
            complaint => link::printable(complaint),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn a_filter_is_typed_and_terminating_is_confirmed() {
        let (mut settings, mut entry, mut scene) = (Settings::new(), Entry::Keys, Scene::default());
        for letter in "/qt".chars() {
            press(key(KeyCode::Char(letter)), &scene, &mut settings, &mut entry);
        }
        assert_eq!((settings.filter.as_str(), entry), ("qt", Entry::Filter));
        press(key(KeyCode::Enter), &scene, &mut settings, &mut entry);
        press(key(KeyCode::Char('t')), &scene, &mut settings, &mut entry);
        assert_eq!(entry, Entry::Keys, "there is nobody to terminate");
        let state: DaemonState = serde_json::from_value(serde_json::json!({
            "daemon_pid": 1,
            "servers": [{"pid": 9, "uid": 0, "status": "ACTIVE", "snapshot": {
                "devices": [{"uuid": "", "name": "", "pci_bus_id": "", "executor_pid": 0, "granted_bytes": 0, "kernels_ever": 0}],
                "clients": [{"client_id": 1, "pid": 7, "uid": 0, "pid_namespace": 0, "command": "", "contexts": [],
                    "kernels": 0, "copied_bytes": 0, "granted_bytes": 0, "commands": 0,
                    "devices": [{"device": 0, "granted_bytes": 0, "memory_limit_bytes": null, "kernels": 0, "copied_bytes": 0,
                        "gpu_time_ns": 0, "queued_bytes": 0, "launch_counts": [], "launch_time_ns": 0, "error": 0}]}],
                "clients_ever": 1}}]
        }))
        .unwrap();
        scene = model::scene(None, &state, Duration::ZERO);
        press(key(KeyCode::Char('t')), &scene, &mut settings, &mut entry);
        assert_eq!(entry, Entry::Confirm { server_pid: 9, pid: 7 });
        let pressed = press(key(KeyCode::Char('y')), &scene, &mut settings, &mut entry);
        assert_eq!(pressed, Pressed::Terminate { server_pid: 9, pid: 7 });
        assert_eq!(
            press(key(KeyCode::Char('q')), &scene, &mut settings, &mut entry),
            Pressed::Quit
        );
    }
}
