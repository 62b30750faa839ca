//! A row of the table of settings.

use crate::values::parse_switch;
use crate::words::{Word, listed, not_one_of};
use crate::{Address, GuardMode, Memory, Percentage, Priority, ValueError};
use crate::{parse_memory_list, parse_memory_of_each, parse_users};

/// A setting: its names, its values, and what is said of it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its variable of the environment.
    pub variable: &'static str,
    /// Its key in the configuration file, as `section.key`.
    pub key: Option<&'static str>,
    /// The option that sets it: of `openmps run`, or of the control utility.
    pub option: Option<&'static str>,
    /// Who reads it.
    pub scope: Scope,
    /// What it can be.
    pub kind: Kind,
    /// What holds where it is not set: a value, or words that say it; empty: nothing.
    pub default: &'static str,
    /// What the configuration file shows, if not the default.
    example: &'static str,
    /// A line of help, with a space before it.
    pub(crate) help: &'static str,
}

/// Who reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The daemon, or a server or executor that it starts.
    Daemon,
    /// The library in a program; its server judges the value.
    Program,
    /// Both: of the daemon it is every program's default.
    Both,
    /// The software GPU.
    SoftwareGpu,
}

/// What a setting can be.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A path, a name or a list, which is judged by who uses it.
    Text,
    /// `on` or `off`.
    Switch,
    /// A number, at least and at most.
    Number(u64, u64),
    /// One of a few words.
    Words(&'static [Word]),
    /// [`GuardMode`].
    Guard,
    /// [`Percentage`].
    Percentage,
    /// [`Priority`].
    Priority,
    /// [`Memory`].
    Memory,
    /// Memory by device: `0=4G,1=2G`.
    MemoryList,
    /// Memory of each device, or by device.
    MemoryOfEach,
    /// [`Address`].
    Address,
    /// Users, as [`parse_users`] reads them.
    Users,
    /// Limits of groups or profiles by name, which the daemon's own code reads.
    Groups,
}

impl Setting {
    pub(crate) const fn new(
        scope: Scope,
        variable: &'static str,
        kind: Kind,
        default: &'static str,
    ) -> Self {
        Self { variable, key: None, option: None, scope, kind, default, example: "", help: "" }
    }

    pub(crate) const fn key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }

    pub(crate) const fn option(self, option: &'static str) -> Self {
        Self { option: Some(option), ..self }
    }

    pub(crate) const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    pub(crate) const fn help_text(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    /// A value that it can have.
    pub fn example_value(&self) -> &'static str {
        if self.example.is_empty() { self.default } else { self.example }
    }

    /// Its line of help, with the values that it can have.
    pub fn help(&self) -> String {
        let help = self.help.trim_start();
        self.expected().map_or_else(|| help.to_owned(), |expected| format!("{help} ({expected})"))
    }

    /// The values that it can have, where a few words or two numbers say them.
    fn expected(&self) -> Option<String> {
        match self.kind {
            Kind::Number(least, most) if most < u64::from(u32::MAX) => {
                Some(format!("{least} to {most}"))
            }
            Kind::Switch => Some("on or off".to_owned()),
            Kind::Words(words) => Some(listed(words)),
            _ => None,
        }
    }

    /// Whether this can be its value.
    ///
    /// # Errors
    /// What is wrong with it. [`Kind::Groups`] is judged by who reads it.
    pub fn check(&self, text: &str) -> Result<(), ValueError> {
        match self.kind {
            Kind::Text | Kind::Groups => Ok(()),
            Kind::Switch => parse_switch(text).map(drop),
            Kind::Number(..) => self.number(text).map(drop),
            Kind::Words(words) if words.iter().any(|word| word.word == text.trim()) => Ok(()),
            Kind::Words(words) => Err(not_one_of(text, words)),
            Kind::Guard => GuardMode::parse(text).map(drop),
            Kind::Percentage => text.parse::<Percentage>().map(drop),
            Kind::Priority => text.parse::<Priority>().map(drop),
            Kind::Memory => text.parse::<Memory>().map(drop),
            Kind::MemoryList => parse_memory_list(text).map(drop),
            Kind::MemoryOfEach => parse_memory_of_each(text).map(drop),
            Kind::Address => text.parse::<Address>().map(drop),
            Kind::Users => parse_users(text).try_for_each(|user| user.map(drop)),
        }
    }

    /// Reads the value of a [`Kind::Number`].
    ///
    /// # Errors
    /// [`ValueError::Choice`].
    pub fn number(&self, text: &str) -> Result<u64, ValueError> {
        let (least, most) = match self.kind {
            Kind::Number(least, most) => (least, most),
            _ => (0, u64::MAX),
        };
        let number = text.trim().parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| ValueError::Choice {
            text: text.to_owned(),
            expected: format!("a number from {least} to {most}"),
        })
    }
}
