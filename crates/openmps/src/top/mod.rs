//! `openmps top`: GPUs and clients, live, in the terminal or in a browser ([`web`]).
//!
//! [`model`] makes a scene of two looks at the daemon, [`past`] adds the last minute, and [`draw`]
//! and [`details`] show it; [`keys`] says what keys do. Here is the clock, and the daemon.

mod columns;
mod details;
mod draw;
mod keys;
mod model;
mod palette;
mod past;
#[cfg(test)]
mod picture;
#[cfg(test)]
mod screens;
mod users;
mod web;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use link::wire::shares::{LimitChange, Target};
use link::wire::ui::{DaemonState, UiRequest};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::cli::Top;
use draw::{draw, plain};
use keys::{Action, Flow, Pressed, View};
use model::{Scene, scene};
use palette::Palette;
use past::Pasts;
use users::Users;

/// Width of plain output that goes to no terminal.
const PLAIN_WIDTH: u16 = 160;

/// Runs until the user has seen enough.
///
/// # Errors
/// No daemon at the start; a terminal that cannot be drawn on, or an address that is taken.
pub(crate) fn top(options: &Top) -> anyhow::Result<ExitCode> {
    let interval = Duration::from_secs_f64(options.interval);
    let mut watch = Watch::start()?;
    if let Some(place) = &options.web {
        return web::serve(place, watch, interval);
    }
    if options.once || options.json || !stdout().is_terminal() {
        std::thread::sleep(interval);
        watch.look()?;
        return print_once(options, &watch);
    }
    // A panic restores the terminal too.
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, &mut watch, interval);
    ratatui::restore();
    result
}

fn print_once(options: &Top, watch: &Watch) -> anyhow::Result<ExitCode> {
    watch.scene.silences.iter().for_each(|silence| eprintln!("{silence}"));
    let view = View::new(Palette::None);
    let scene = watch.arranged(&view);
    if options.json {
        crate::show::print_json(scene)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = ratatui::crossterm::terminal::size().map_or(PLAIN_WIDTH, |(width, _)| width);
    let width = if stdout().is_terminal() { width } else { PLAIN_WIDTH };
    print!("{}", plain(&scene, &view, width));
    Ok(ExitCode::SUCCESS)
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    watch: &mut Watch,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut view = View::new(Palette::from_environment());
    loop {
        let scene = watch.arranged(&view);
        view.follow(&scene);
        terminal.draw(|frame| draw(frame, &scene, &view))?;
        let next_look = watch.looked + interval;
        if event::poll(next_look.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match view.press(key, &scene) {
                    Pressed::Quit => return Ok(ExitCode::SUCCESS),
                    Pressed::Act(action) => {
                        view.message = Some(watch.act(&action).unwrap_or_else(said));
                    }
                    Pressed::Nothing => {}
                }
            }
        } else {
            match view.flow {
                Flow::Live => {
                    let trouble = watch.look().err().map(said);
                    view.trouble = trouble.map(|trouble| format!("{trouble}: trying again"));
                }
                Flow::Paused => watch.skip(),
            }
        }
    }
}

fn said(error: FrontendError) -> String {
    link::printable(&error.to_string())
}

/// The daemon, looked at again and again.
struct Watch {
    directories: Directories,
    /// None while no daemon answers.
    frontend: Option<Frontend>,
    now: DaemonState,
    /// When [`Self::now`] was said, and when it was last asked for.
    said: Instant,
    looked: Instant,
    pasts: Pasts,
    users: Users,
    scene: Scene,
}

impl Watch {
    fn start() -> anyhow::Result<Self> {
        let directories = Directories::from_environment();
        let mut frontend = Frontend::connect(&directories)?;
        let now = frontend.state()?;
        let users = Users::of_this_system();
        let scene = scene(None, &now, Duration::ZERO, &users);
        let (said, frontend, pasts) = (Instant::now(), Some(frontend), Pasts::default());
        Ok(Self { directories, frontend, now, said, looked: said, pasts, users, scene })
    }

    /// Asks the daemon, the next one if the last has gone.
    fn look(&mut self) -> Result<(), FrontendError> {
        self.skip();
        let state = self.ask(Frontend::state)?;
        let at = Instant::now();
        let elapsed = at - self.said;
        let mut scene = scene(Some(&self.now), &state, elapsed, &self.users);
        self.pasts.note(&mut scene, elapsed.as_secs_f64());
        (self.now, self.said, self.looked, self.scene) = (state, at, at, scene);
        Ok(())
    }

    /// Asks nothing until it is time for the next look.
    fn skip(&mut self) {
        self.looked = Instant::now();
    }

    fn ask<R>(
        &mut self,
        what: impl FnOnce(&mut Frontend) -> Result<R, FrontendError>,
    ) -> Result<R, FrontendError> {
        let mut frontend = match self.frontend.take() {
            Some(frontend) => frontend,
            None => Frontend::connect(&self.directories)?,
        };
        let answer = what(&mut frontend)?;
        self.frontend = Some(frontend);
        Ok(answer)
    }

    fn arranged(&self, view: &View) -> Scene {
        let mut scene = self.scene.clone();
        scene.arrange(view.sort, view.direction, &view.filter);
        scene
    }

    /// Does what was confirmed, and says in a line what came of it.
    fn act(&mut self, action: &Action) -> Result<String, FrontendError> {
        match action {
            Action::Terminate(of) => {
                let line = format!("terminate_client {} {}", of.server_pid, of.pid);
                let answer = self.ask(|frontend| frontend.command(&line))?;
                let complaint = answer.error.lines().next().unwrap_or_default();
                Ok(match complaint {
                    "" => format!("client {} was terminated", of.pid),
                    complaint => link::printable(complaint),
                })
            }
            Action::Limit { of, limits } => {
                let change = LimitChange { target: Target::Client(of.pid), limits: *limits };
                let request = UiRequest::Limit(change);
                let report = match self.ask(|frontend| frontend.change_shares(&request))? {
                    Err(refusal) => return Ok(link::printable(&refusal)),
                    Ok(report) => report,
                };
                Ok(match report.refused.first() {
                    Some(refusal) => link::printable(refusal),
                    None if report.waiting.is_empty() => {
                        format!("client {}: in force", of.pid)
                    }
                    None => format!("client {}: in force when its kernels have ended", of.pid),
                })
            }
        }
    }
}
