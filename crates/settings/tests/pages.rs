//! The table against what is written down: the delivered file, the page of settings, the sources.

use settings::{OTHER_VARIABLES, SETTINGS, Scope, Setting};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `OPENMPS_UPDATE_SETTINGS=1` writes it.
#[test]
fn the_delivered_file_is_what_the_table_makes() {
    let path = root().join("packaging/config.toml");
    if std::env::var_os("OPENMPS_UPDATE_SETTINGS").is_some() {
        fs::write(&path, settings::sample_file()).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap(), settings::sample_file());
}

#[test]
fn examples_can_be_used() {
    for setting in SETTINGS {
        assert_eq!(setting.check(setting.example_value()), Ok(()), "{setting:?}");
    }
}

/// A row of a table of the page: the variables that it names, and its cells.
struct Row {
    names: Vec<String>,
    cells: Vec<String>,
}

/// The rows of all tables under a heading, up to the next one of its level.
fn rows(page: &str, heading: &str) -> Vec<Row> {
    let begin = page.find(&format!("\n## {heading}\n")).expect(heading) + 4;
    let part = &page[begin..];
    let part = part.find("\n## ").map_or(part, |end| &part[..end]);
    let rows = part.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        let names = cells[0].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Row { names, cells }
    })
    .collect()
}

/// Each setting stands on the page where its readers look for it, with its option and its default.
#[test]
fn the_page_says_what_the_table_says() {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let parts = [
        ("Variables of the daemon", [Scope::Daemon, Scope::Both]),
        ("Variables of a program", [Scope::Program, Scope::Both]),
        ("Variables of the software GPU", [Scope::SoftwareGpu; 2]),
    ];
    for (heading, scopes) in parts {
        let rows = rows(&page, heading);
        let wanted: Vec<&Setting> =
            SETTINGS.iter().filter(|setting| scopes.contains(&setting.scope)).collect();
        for setting in &wanted {
            let row = rows.iter().find(|row| row.names.iter().any(|it| it == setting.variable));
            let Some(row) = row else {
                // Explained in docs/control.md.
                let is_nvidias = setting.variable.starts_with("CUDA_");
                assert!(is_nvidias, "{heading} lacks {}", setting.variable);
                continue;
            };
            if heading == "Variables of a program" && row.names.len() == 1 {
                let option = row.cells[1].trim_matches('`').split(['=', ' ']).next();
                assert_eq!(option.unwrap_or_default(), setting.option.unwrap_or_default());
            }
            let default = row.cells.last().unwrap().replace('`', "");
            let is_plain = row.names.len() == 1;
            assert!(!is_plain || default.starts_with(setting.default), "{default}: {setting:?}");
        }
        for name in rows.iter().flat_map(|row| &row.names) {
            assert!(wanted.iter().any(|setting| setting.variable == name), "{heading}: {name}");
        }
    }
}

/// Every variable that the sources name is known: a new one is added to the table, or users are
/// told that there is none.
#[test]
fn all_that_is_read_is_known() {
    let crates = root().join("crates");
    let is_of_slurm = |path: &Path| path.ends_with("spank-openmps/src");
    let mut directories: Vec<_> = fs::read_dir(crates)
        .unwrap()
        .map(|one| one.unwrap().path().join("src"))
        .filter(|path| !is_of_slurm(path))
        .collect();
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let mut count = 0;
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            // This file has names that are none.
            if path.is_dir() || path.ends_with("settings/src/variables.rs") {
                directories.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for (at, _) in text.match_indices("OPENMPS_") {
                let end = text[at..].find(|c| !is_part(c)).map_or(text.len(), |end| at + end);
                let (name, before) = (&text[at..end], text[..at].chars().next_back());
                // Parts of other names, prefixes, and the options of Slurm and PBS.
                if before.is_some_and(is_part) || name.ends_with('_') {
                    continue;
                }
                let is_known = SETTINGS.iter().any(|setting| setting.variable == name)
                    || OTHER_VARIABLES.contains(&name);
                assert!(is_known, "{}: {name} is not in the table", path.display());
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} were found");
}
