//! What makes a file a trace: a checker of the Trace Event Format, as `chrome://tracing` and
//! Perfetto read it.
//!
//! Written from the format's description, not from what `openmps trace` writes: an array
//! `traceEvents` of objects whose `ph` says which other members they must have; begins and ends
//! that match; slices of one track that lie within each other or apart; arrows that have both ends,
//! each inside a slice of its track.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A trace that has passed all checks.
#[derive(Debug)]
pub struct Trace {
    /// Its events.
    pub events: Vec<Value>,
    /// Its `otherData`.
    pub other: Value,
}

/// Nanoseconds; members are microseconds.
fn nanos(event: &Value, member: &str) -> Result<i64> {
    let micros =
        event[member].as_f64().with_context(|| format!("no number `{member}`: {event}"))?;
    ensure!(micros >= 0.0 && micros.is_finite(), "{member} is {micros}: {event}");
    Ok((micros * 1000.0).round() as i64)
}

fn text<'a>(event: &'a Value, member: &str) -> Result<&'a str> {
    event[member].as_str().with_context(|| format!("no text `{member}`: {event}"))
}

/// Process and track.
fn track(event: &Value) -> Result<(i64, i64)> {
    let number = |member: &str| {
        event[member].as_i64().with_context(|| format!("no whole number `{member}`: {event}"))
    };
    Ok((number("pid")?, number("tid")?))
}

/// An id may be a number or a text; together with the category it names one pair.
fn id(event: &Value) -> Result<(String, String)> {
    let id = &event["id"];
    ensure!(id.is_string() || id.is_number(), "no id: {event}");
    Ok((text(event, "cat")?.to_owned(), id.to_string()))
}

/// When a slice begins and ends.
type Slice = (i64, i64);

impl Trace {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("{}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    /// Checks a file's text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let mut trace: Value = serde_json::from_slice(json).context("it is no JSON")?;
        let other = trace["otherData"].take();
        let Value::Array(events) = trace["traceEvents"].take() else {
            bail!("there is no array `traceEvents`");
        };
        let unit = &trace["displayTimeUnit"];
        ensure!(unit.is_null() || unit == "ms" || unit == "ns", "displayTimeUnit is {unit}");
        let trace = Self { events, other };
        trace.check()?;
        Ok(trace)
    }

    /// The events of a category with that phase.
    pub fn of(&self, phase: &str, category: &str) -> Vec<&Value> {
        self.events
            .iter()
            .filter(|event| event["ph"] == phase && event["cat"] == category)
            .collect()
    }

    /// The complete events of that name.
    pub fn named(&self, name: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["ph"] == "X" && event["name"] == name).collect()
    }

    fn check(&self) -> Result<()> {
        let mut slices: HashMap<(i64, i64), Vec<Slice>> = HashMap::new();
        let mut open: HashMap<(i64, i64), Vec<&Value>> = HashMap::new();
        let mut pairs: HashMap<(String, String), Vec<&Value>> = HashMap::new();
        let mut arrows: HashMap<(String, String), Vec<&Value>> = HashMap::new();
        for event in &self.events {
            let track = track(event)?;
            text(event, "name")?;
            let args = &event["args"];
            ensure!(args.is_null() || args.is_object(), "args are no object: {event}");
            match text(event, "ph")? {
                "X" => {
                    let (start, length) = (nanos(event, "ts")?, nanos(event, "dur")?);
                    text(event, "cat")?;
                    slices.entry(track).or_default().push((start, start + length));
                }
                "B" => open.entry(track).or_default().push(event),
                "E" => {
                    let begun = open.get_mut(&track).and_then(Vec::pop);
                    let begun = begun.with_context(|| format!("an end of nothing: {event}"))?;
                    let slice = (nanos(begun, "ts")?, nanos(event, "ts")?);
                    slices.entry(track).or_default().push(slice);
                }
                "b" | "e" => pairs.entry(id(event)?).or_default().push(event),
                "s" | "t" | "f" => arrows.entry(id(event)?).or_default().push(event),
                "i" | "I" => {
                    nanos(event, "ts")?;
                    let scope = &event["s"];
                    ensure!(
                        scope.is_null() || scope == "g" || scope == "p" || scope == "t",
                        "an instant of scope {scope}"
                    );
                }
                "M" => {
                    let is_known = match text(event, "name")? {
                        "process_name" | "thread_name" => args["name"].is_string(),
                        "process_sort_index" | "thread_sort_index" => args["sort_index"].is_i64(),
                        name => bail!("metadata {name} is not known"),
                    };
                    ensure!(is_known, "metadata without its value: {event}");
                }
                phase => bail!("phase {phase} is not known: {event}"),
            }
        }
        ensure!(open.values().all(Vec::is_empty), "slices that never end");
        for slices in slices.values_mut() {
            slices.sort_by_key(|&(start, end)| (start, -end));
            check_nesting(slices)?;
        }
        pairs.values().try_for_each(|pair| check_pair(pair))?;
        arrows.values().try_for_each(|arrow| check_arrow(arrow, &slices))
    }
}

/// Of two slices of one track, one lies in the other, or they lie apart.
fn check_nesting(slices: &[Slice]) -> Result<()> {
    let mut around: Vec<Slice> = Vec::new();
    for &slice in slices {
        while around.last().is_some_and(|&(_, end)| end <= slice.0) {
            around.pop();
        }
        if let Some(&outer) = around.last() {
            ensure!(slice.1 <= outer.1, "slices {outer:?} and {slice:?} cross, in ns");
        }
        around.push(slice);
    }
    Ok(())
}

fn check_pair(pair: &[&Value]) -> Result<()> {
    let [begin, end] = pair else { bail!("{} events of one id: {}", pair.len(), pair[0]) };
    ensure!(begin["ph"] == "b" && end["ph"] == "e", "not begun and ended: {begin} {end}");
    ensure!(begin["name"] == end["name"], "two names: {begin} {end}");
    ensure!(nanos(begin, "ts")? <= nanos(end, "ts")?, "ended before it began: {begin} {end}");
    Ok(())
}

fn check_arrow(arrow: &[&Value], slices: &HashMap<(i64, i64), Vec<Slice>>) -> Result<()> {
    let [start, finish] = arrow else { bail!("{} events of one arrow: {}", arrow.len(), arrow[0]) };
    ensure!(start["ph"] == "s" && finish["ph"] == "f", "not from s to f: {start} {finish}");
    ensure!(start["name"] == finish["name"], "two names: {start} {finish}");
    ensure!(
        nanos(start, "ts")? <= nanos(finish, "ts")?,
        "an arrow into the past: {start} {finish}"
    );
    ensure!(finish["bp"].is_null() || finish["bp"] == "e", "{finish}");
    for end in [start, finish] {
        let (at, slices) = (nanos(end, "ts")?, slices.get(&track(end)?));
        // Sorted by beginning: the slice that begins here, or the last one before.
        let is_inside = slices.is_some_and(|slices| {
            let behind = slices.partition_point(|&(start, _)| start <= at);
            slices[..behind].iter().rev().take(64).any(|&(_, until)| at <= until)
        });
        ensure!(is_inside, "an arrow's end lies in no slice: {end}");
    }
    Ok(())
}
