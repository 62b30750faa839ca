//! What keys do: they change what is shown, and ask for actions, each after a question.

use link::wire::shares::{MemoryLimit, NewLimits};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use settings::{Memory, Percentage, WEIGHT};

use super::columns::{short, short_command};
use super::model::{Direction, Row, Scene, SortKey};
use super::palette::Palette;
use super::past::Key;

/// Lines that a page key goes.
const PAGE: isize = 10;

/// What the user has set, beside the scene.
#[derive(Debug)]
pub(super) struct View {
    pub(super) palette: Palette,
    pub(super) sort: SortKey,
    pub(super) direction: Direction,
    pub(super) filter: String,
    pub(super) flow: Flow,
    pub(super) page: Page,
    /// Lines of a page of text that are scrolled away.
    pub(super) scrolled: u16,
    pub(super) entry: Entry,
    /// What came of the last action.
    pub(super) message: Option<String>,
    /// Why nothing new is shown: the daemon does not answer.
    pub(super) trouble: Option<String>,
    /// The line of the selected client, which the selection follows wherever it is sorted to.
    pub(super) selected: usize,
    chosen: Option<Key>,
}

/// Whether the screen goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Live,
    Paused,
}

/// What is on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Clients,
    /// Of the selected client.
    Details,
    Help,
}

/// What keys are taken for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    /// Commands.
    Keys,
    /// Letters of the filter.
    Filter,
    /// Letters of new limits.
    Limits { of: Client, text: String },
    /// The answer to whether this is to be done.
    Confirm(Action),
}

/// Whom an action is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) server_pid: u32,
    pub(super) pid: u32,
    pub(super) gpu: u32,
    command: String,
}

/// What changes something at the daemon.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Terminate(Client),
    Limit { of: Client, limits: NewLimits },
}

/// What a key asked for.
#[derive(Debug, PartialEq)]
pub(super) enum Pressed {
    Nothing,
    Quit,
    Act(Action),
}

impl Action {
    fn question(&self) -> String {
        match self {
            Self::Terminate(of) => {
                format!("terminate client {} ({})? y: yes, other keys: no", of.pid, of.command)
            }
            Self::Limit { of, limits } => {
                format!("client {}: {}? y: yes, other keys: no", of.pid, words(limits))
            }
        }
    }
}

/// New limits for people.
fn words(limits: &NewLimits) -> String {
    let memory = limits.memory.map(|memory| match memory.limit_bytes {
        Some(bytes) => format!("memory {}", short(bytes)),
        None => "no limit of memory".to_owned(),
    });
    let sms = limits.percentage.map(|percent| format!("{percent} % of the SMs"));
    let weight = limits.weight.map(|weight| format!("weight {weight}"));
    let all: Vec<String> = [memory, sms, weight].into_iter().flatten().collect();
    all.join(", ")
}

/// Reads `memory=4G sm-percent=50 weight=2`, of which any may be missing.
fn read_limits(text: &str, gpu: u32) -> Result<NewLimits, String> {
    let mut limits = NewLimits::default();
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "memory" => {
                let size: Memory = value.parse().map_err(|error| format!("memory: {error}"))?;
                limits.memory =
                    Some(MemoryLimit { device: Some(gpu), limit_bytes: size.limit_bytes() });
            }
            "sm-percent" | "sm" => {
                let share: Percentage =
                    value.parse().map_err(|error| format!("sm-percent: {error}"))?;
                limits.percentage = Some(share.percent());
            }
            "weight" => {
                let weight = WEIGHT.number(value).map_err(|error| format!("weight: {error}"))?;
                limits.weight = Some(weight as u32);
            }
            _ => return Err(format!("`{word}`: {LIMITS_ARE}")),
        }
    }
    if limits == NewLimits::default() {
        return Err(LIMITS_ARE.to_owned());
    }
    Ok(limits)
}

const LIMITS_ARE: &str = "give memory=4G, sm-percent=50 or weight=2";

impl View {
    pub(super) fn new(palette: Palette) -> Self {
        Self {
            palette,
            sort: SortKey::Busy,
            direction: Direction::Usual,
            filter: String::new(),
            flow: Flow::Live,
            page: Page::Clients,
            scrolled: 0,
            entry: Entry::Keys,
            message: None,
            trouble: None,
            selected: 0,
            chosen: None,
        }
    }

    /// What is typed, or asked; `None`: the keys are commands.
    pub(super) fn prompt(&self) -> Option<String> {
        match &self.entry {
            Entry::Keys => None,
            Entry::Filter => Some(format!("filter: {}_  (Enter: done, Esc: none)", self.filter)),
            Entry::Limits { of, text } if text.is_empty() => {
                Some(format!("limits of {}: memory=4G sm-percent=50 weight=2 (Esc: none)", of.pid))
            }
            Entry::Limits { of, text } => Some(format!("limits of {}: {text}_", of.pid)),
            Entry::Confirm(action) => Some(action.question()),
        }
    }

    /// Finds the selected client in a scene; where it is gone, the one in its line is selected.
    pub(super) fn follow(&mut self, scene: &Scene) {
        let line = self.chosen.and_then(|key| scene.rows.iter().position(|row| row.key() == key));
        let line = line.unwrap_or(self.selected);
        self.select(scene, line);
    }

    pub(super) fn row<'a>(&self, scene: &'a Scene) -> Option<&'a Row> {
        scene.rows.get(self.selected)
    }

    fn select(&mut self, scene: &Scene, line: usize) {
        self.selected = line.min(scene.rows.len().saturating_sub(1));
        self.chosen = self.row(scene).map(Row::key);
    }

    fn move_by(&mut self, scene: &Scene, lines: isize) {
        match self.page {
            Page::Clients => self.select(scene, self.selected.saturating_add_signed(lines)),
            Page::Details | Page::Help => {
                let lines = i16::try_from(lines).unwrap_or(i16::MAX);
                self.scrolled = self.scrolled.saturating_add_signed(lines);
            }
        }
    }

    fn turn_to(&mut self, page: Page) {
        (self.page, self.scrolled) = (page, 0);
    }

    pub(super) fn press(&mut self, key: KeyEvent, scene: &Scene) -> Pressed {
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Pressed::Quit;
        }
        match std::mem::replace(&mut self.entry, Entry::Keys) {
            Entry::Keys => return self.command(key.code, scene),
            Entry::Filter => self.type_filter(key.code),
            Entry::Limits { of, text } => self.type_limits(key.code, of, text),
            Entry::Confirm(action) if key.code == KeyCode::Char('y') => {
                return Pressed::Act(action);
            }
            Entry::Confirm(_) => self.message = Some("nothing was done".to_owned()),
        }
        Pressed::Nothing
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc => return self.filter.clear(),
            KeyCode::Enter => return,
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.entry = Entry::Filter;
    }

    fn type_limits(&mut self, code: KeyCode, of: Client, mut text: String) {
        match code {
            KeyCode::Esc => return,
            KeyCode::Enter => match read_limits(&text, of.gpu) {
                Ok(limits) => return self.entry = Entry::Confirm(Action::Limit { of, limits }),
                Err(wrong) => return self.message = Some(wrong),
            },
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(letter) => text.push(letter),
            _ => {}
        }
        self.entry = Entry::Limits { of, text };
    }

    fn command(&mut self, code: KeyCode, scene: &Scene) -> Pressed {
        let client = self.row(scene).map(|row| Client {
            server_pid: row.server_pid,
            pid: row.pid,
            gpu: row.gpu,
            command: short_command(&row.command).chars().take(24).collect(),
        });
        let last = scene.rows.len().saturating_sub(1);
        match (code, client) {
            (KeyCode::Char('q'), _) => return Pressed::Quit,
            (KeyCode::Esc | KeyCode::Char('?' | 'h'), _) if self.page == Page::Help => {
                self.turn_to(Page::Clients);
            }
            (KeyCode::Char('?' | 'h'), _) => self.turn_to(Page::Help),
            (KeyCode::Esc | KeyCode::Enter, _) if self.page != Page::Clients => {
                self.turn_to(Page::Clients);
            }
            (KeyCode::Esc, _) => return Pressed::Quit,
            (KeyCode::Enter, Some(_)) => self.turn_to(Page::Details),
            (KeyCode::Char('s'), _) => self.sort = self.sort.next(),
            (KeyCode::Char('r'), _) => {
                self.direction = match self.direction {
                    Direction::Usual => Direction::Reversed,
                    Direction::Reversed => Direction::Usual,
                }
            }
            (KeyCode::Char('p' | ' '), _) => {
                self.flow = match self.flow {
                    Flow::Live => Flow::Paused,
                    Flow::Paused => Flow::Live,
                }
            }
            (KeyCode::Char('/'), _) => self.entry = Entry::Filter,
            (KeyCode::Up | KeyCode::Char('k'), _) => self.move_by(scene, -1),
            (KeyCode::Down | KeyCode::Char('j'), _) => self.move_by(scene, 1),
            (KeyCode::PageUp, _) => self.move_by(scene, -PAGE),
            (KeyCode::PageDown, _) => self.move_by(scene, PAGE),
            (KeyCode::Home, _) => self.select(scene, 0),
            (KeyCode::End, _) => self.select(scene, last),
            (KeyCode::Char('t'), Some(client)) => {
                self.entry = Entry::Confirm(Action::Terminate(client));
            }
            (KeyCode::Char('l'), Some(of)) => {
                self.entry = Entry::Limits { of, text: String::new() };
            }
            (KeyCode::Char('t' | 'l') | KeyCode::Enter, None) => {
                self.message = Some("there is no client".to_owned());
            }
            _ => {}
        }
        Pressed::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::super::screens::scene;
    use super::*;

    fn press(view: &mut View, scene: &Scene, code: KeyCode) -> Pressed {
        view.press(KeyEvent::new(code, KeyModifiers::NONE), scene)
    }

    fn type_in(view: &mut View, scene: &Scene, text: &str) {
        for letter in text.chars() {
            assert_eq!(press(view, scene, KeyCode::Char(letter)), Pressed::Nothing);
        }
    }

    #[test]
    fn a_filter_is_typed_and_letters_are_no_commands() {
        let (mut view, scene) = (View::new(Palette::None), scene(3));
        type_in(&mut view, &scene, "/qtx");
        press(&mut view, &scene, KeyCode::Backspace);
        press(&mut view, &scene, KeyCode::Enter);
        assert_eq!((view.filter.as_str(), &view.entry), ("qt", &Entry::Keys));
        type_in(&mut view, &scene, "/");
        press(&mut view, &scene, KeyCode::Esc);
        assert_eq!(view.filter, "");
    }

    #[test]
    fn terminating_is_asked_for_and_confirmed() {
        let (mut view, three) = (View::new(Palette::None), scene(3));
        type_in(&mut view, &scene(0), "t");
        assert_eq!(view.message.as_deref(), Some("there is no client"));
        type_in(&mut view, &three, "jtn");
        assert_eq!(view.message.as_deref(), Some("nothing was done"));
        type_in(&mut view, &three, "t");
        let asked = view.prompt().unwrap();
        let pid = three.rows[1].pid;
        assert!(asked.contains(&format!("terminate client {pid} (")), "{asked}");
        let pressed = press(&mut view, &three, KeyCode::Char('y'));
        let Pressed::Act(Action::Terminate(of)) = pressed else { panic!("{pressed:?}") };
        assert_eq!((of.pid, of.server_pid), (pid, three.rows[1].server_pid));
        assert_eq!(press(&mut view, &three, KeyCode::Char('q')), Pressed::Quit);
    }

    #[test]
    fn limits_are_typed_and_confirmed() {
        let (mut view, scene) = (View::new(Palette::None), scene(3));
        type_in(&mut view, &scene, "lmemory=2G sm-percent=50");
        press(&mut view, &scene, KeyCode::Enter);
        let asked = view.prompt().unwrap();
        assert!(asked.contains("memory 2.0G, 50 % of the SMs?"), "{asked}");
        let pressed = press(&mut view, &scene, KeyCode::Char('y'));
        let Pressed::Act(Action::Limit { limits, .. }) = pressed else { panic!("{pressed:?}") };
        let memory = MemoryLimit { device: Some(0), limit_bytes: Some(2 << 30) };
        assert_eq!((limits.memory, limits.percentage), (Some(memory), Some(50.0)));
        for wrong in ["", "memory=x", "sm=0", "sm-percent=0", "weight=1001", "size=3"] {
            type_in(&mut view, &scene, &format!("l{wrong}"));
            assert_eq!(press(&mut view, &scene, KeyCode::Enter), Pressed::Nothing);
            assert!(view.message.is_some() && view.entry == Entry::Keys, "{wrong}");
        }
        assert_eq!(words(&read_limits("memory=0", 0).unwrap()), "no limit of memory");
    }

    #[test]
    fn the_selection_follows_its_client() {
        let (mut view, mut scene) = (View::new(Palette::None), scene(3));
        view.follow(&scene);
        press(&mut view, &scene, KeyCode::Down);
        let pid = view.row(&scene).unwrap().pid;
        scene.rows.reverse();
        scene.rows.swap(0, 1);
        view.follow(&scene);
        assert_eq!((view.selected, view.row(&scene).unwrap().pid), (0, pid));
        scene.rows.remove(0);
        view.follow(&scene);
        assert_eq!(view.selected, 0);
        assert_ne!(view.row(&scene).unwrap().pid, pid);
        press(&mut view, &scene, KeyCode::End);
        assert_eq!(view.selected, 1);
    }

    #[test]
    fn pages_are_left_with_escape_and_the_last_escape_ends() {
        let (mut view, scene) = (View::new(Palette::None), scene(3));
        type_in(&mut view, &scene, "?");
        assert_eq!(view.page, Page::Help);
        press(&mut view, &scene, KeyCode::Esc);
        press(&mut view, &scene, KeyCode::Enter);
        press(&mut view, &scene, KeyCode::Down);
        assert_eq!((view.page, view.scrolled), (Page::Details, 1));
        press(&mut view, &scene, KeyCode::Esc);
        type_in(&mut view, &scene, "p");
        assert_eq!((view.page, view.flow), (Page::Clients, Flow::Paused));
        assert_eq!(press(&mut view, &scene, KeyCode::Esc), Pressed::Quit);
    }
}
