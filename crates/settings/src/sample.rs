//! The configuration file as it is delivered: every key, as a comment.

use crate::{Kind, SETTINGS, Setting};

/// Where help begins.
const HELP_COLUMN: usize = 35;

const HEAD: &str = "\
# Settings of OpenMPS. Environment variables win over this file; `openmps config` shows what is in force.
";

/// Tables whose names are the administrator's.
const GROUPS: &str = r#"
# [profiles.quarter]                # for containers (docs/containers.md): a socket directory of its own; each container has
# memory = "10G"                    # these limits for all its processes together
# sm_percent = 25

# [groups.limits."/kubepods.slice/*"]   # of one group, or of each whose name begins so
# memory = "8G"                     # of all its clients together
# sm_percent = 30                   # the same multiprocessors for all its clients
"#;

/// The text of `packaging/config.toml`.
pub fn sample_file() -> String {
    let (mut text, mut section) = (HEAD.to_owned(), "");
    for setting in SETTINGS.iter().filter(|setting| !matches!(setting.kind, Kind::Groups)) {
        let Some((of, key)) = setting.key.and_then(|key| key.split_once('.')) else { continue };
        if of != section {
            text.push_str(&format!("\n[{of}]\n"));
            section = of;
        }
        let line = format!("# {key} = {}", value(setting));
        // A switch is a boolean here, and neither `on` nor `off`.
        let help = match setting.kind {
            Kind::Switch => setting.help.trim_start().to_owned(),
            _ => setting.help(),
        };
        let is_default = setting.example_value() == setting.default;
        let default = if is_default { String::new() } else { format!(" [{}]", setting.default) };
        text.push_str(&format!("{line:<HELP_COLUMN$} # {help}{default}\n"));
    }
    text + GROUPS
}

fn value(setting: &Setting) -> String {
    let example = setting.example_value();
    match setting.kind {
        Kind::Switch => (example == "on").to_string(),
        Kind::Number(..) | Kind::Percentage | Kind::Priority => example.to_owned(),
        _ => format!("\"{example}\""),
    }
}
