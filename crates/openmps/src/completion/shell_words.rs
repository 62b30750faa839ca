//! Words of the control utility: its options and the commands of its shell, as its help has them.

use super::live::Kind;
use super::{Found, More, Word};
use crate::original;

/// What a place in a command is called in the help, and what stands there.
const PLACES: &[(&str, Kind)] = &[
    ("<PID>", Kind::Server),
    ("<server PID>", Kind::Server),
    ("<client PID>", Kind::Client),
    ("<user id>", Kind::User),
    ("<device>", Kind::Device),
];

/// What may stand behind these words.
pub(super) fn found(begun: &str, before: &[&str], live: &dyn Fn(Kind) -> Vec<Word>) -> Found {
    let is_option = |word: &&&str| word.starts_with('-');
    let Some(at) = before.iter().position(|word| !is_option(&word)) else {
        if before.last() == Some(&"--metrics") {
            return Found { more: More::Nothing, words: Vec::new() };
        }
        let words = if begun.starts_with('-') { options() } else { commands() };
        return Found::words(words);
    };
    let (name, given) = (before[at], &before[at + 1..]);
    let lines = section("COMMANDS:");
    let Some((form, _)) = lines.iter().find(|(form, _)| form.split(' ').next() == Some(name))
    else {
        return Found::words(Vec::new());
    };
    let parts = parts(form);
    // Options with their values, and then the places in order.
    let value_of = |option: &str| {
        let at = parts.iter().position(|part| part == option)?;
        parts.get(at + 1).filter(|part| part.starts_with('<')).cloned()
    };
    let mut places = parts.iter().enumerate().filter(|(at, part)| {
        part.starts_with('<') && (*at == 0 || !parts[at - 1].starts_with('-'))
    });
    let mut words = given.iter();
    let mut taken = 0;
    while let Some(word) = words.next() {
        match value_of(word) {
            Some(place) if words.len() == 0 => return Found::words(of_place(&place, live)),
            Some(_) => drop(words.next()),
            None if word.starts_with('-') => {}
            None => taken += 1,
        }
    }
    if begun.starts_with('-') {
        let options = parts.iter().filter(|part| part.starts_with('-'));
        return Found::words(options.map(|part| (part.clone(), String::new())).collect());
    }
    let place = places.nth(taken).map(|(_, place)| of_place(place, live));
    let options = || parts.first().filter(|part| part.starts_with('-')).cloned();
    Found::words(place.unwrap_or_else(|| {
        options().into_iter().filter(|_| given.is_empty()).map(|it| (it, String::new())).collect()
    }))
}

fn of_place(place: &str, live: &dyn Fn(Kind) -> Vec<Word>) -> Vec<Word> {
    let kind = PLACES.iter().find(|(name, _)| *name == place);
    kind.map(|(_, kind)| live(*kind)).unwrap_or_default()
}

fn commands() -> Vec<Word> {
    let name = |(form, does): Word| (form.split(' ').next().unwrap_or_default().to_owned(), does);
    section("COMMANDS:").into_iter().map(name).collect()
}

fn options() -> Vec<Word> {
    let lines = section("OPTIONS:").into_iter();
    let names = lines.flat_map(|(form, does)| {
        let names: Vec<String> = form
            .split([',', ' '])
            .filter(|name| name.starts_with('-'))
            .map(str::to_owned)
            .collect();
        names.into_iter().map(move |name| (name, does.clone()))
    });
    names.collect()
}

/// The lines of a section of the help: what is typed, and what it does.
fn section(title: &str) -> Vec<Word> {
    let lines = original::HELP.lines().skip_while(|line| *line != title).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let split = |line: &str| {
        let (form, does) = line.trim_start().split_once("  ")?;
        Some((form.to_owned(), does.trim_start().to_owned()))
    };
    lines.filter_map(split).collect()
}

/// What follows a command's name, a place with spaces in its name being one: `-uid`, `<user id>`.
fn parts(form: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = form.split_once(' ').map_or("", |(_, rest)| rest);
    while !rest.is_empty() {
        rest = rest.trim_start_matches([' ', '[', ']']);
        let end = match rest.strip_prefix('<') {
            Some(_) => rest.find('>').map_or(rest.len(), |at| at + 1),
            None => rest.find([' ', ']']).unwrap_or(rest.len()),
        };
        let (part, behind) = rest.split_at(end);
        if !part.is_empty() {
            parts.push(part.to_owned());
        }
        rest = behind;
    }
    parts
}
