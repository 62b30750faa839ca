//! The environment that makes a program a client: for `openmps run` and `openmps env`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use control::directories::Directories;

use crate::cli::{Env, Format, Shell};
use crate::installation::{self, NATIVE_DRIVER_VARIABLE, NativeDriver};

/// Variables of a client's environment.
///
/// # Errors
/// A library directory that cannot be in a search path.
pub(crate) fn client_variables(
    libraries: &Path,
    driver: &NativeDriver,
    directories: &Directories,
) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![
        ("LD_LIBRARY_PATH", installation::library_path(libraries)?),
        ("CUDA_MPS_PIPE_DIRECTORY", directories.pipe().into()),
    ];
    match driver {
        NativeDriver::Named(path) | NativeDriver::SoftwareForWant(path) => {
            variables.push((NATIVE_DRIVER_VARIABLE, path.into()));
        }
        // The client finds it as we did.
        NativeDriver::System(_) => {}
    }
    Ok(variables)
}

#[derive(Debug, serde::Serialize)]
struct Variables {
    variables: BTreeMap<&'static str, String>,
}

/// `openmps env`.
///
/// # Errors
/// No library directory; a named driver that is not there.
pub(crate) fn print_exports(options: &Env) -> anyhow::Result<ExitCode> {
    let shell = options.shell;
    let libraries = installation::library_directory()?;
    let driver = installation::native_driver(installation::DriverWish::None, &libraries)?;
    let variables = client_variables(&libraries, &driver, &Directories::from_environment())?;
    if options.format() == Format::Json {
        let text =
            |(name, value): (&'static str, OsString)| (name, value.to_string_lossy().into_owned());
        let variables = variables.into_iter().map(text).collect();
        crate::show::print_json(Variables { variables })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in variables {
        let value = quote(shell, &value);
        match shell {
            Shell::Sh => println!("export {name}={value}"),
            Shell::Fish => println!("set -gx {name} {value};"),
            Shell::Csh => println!("setenv {name} {value};"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A word that the shell reads back as it is.
pub(crate) fn quote(shell: Shell, value: &OsStr) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:+=@,".contains(byte);
    let text = value.to_string_lossy();
    if !value.is_empty() && value.as_bytes().iter().all(plain) {
        return text.into_owned();
    }
    let mut quoted = String::from("'");
    for c in text.chars() {
        match (shell, c) {
            (Shell::Fish, '\'' | '\\') => quoted.extend(['\\', c]),
            (Shell::Sh | Shell::Csh, '\'') => quoted.push_str("'\\''"),
            // History is expanded inside quotes there.
            (Shell::Csh, '!' | '\n') => quoted.extend(['\\', c]),
            _ => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for word in ["plain/path:other", "with space", "it's", "a$b`c\"d\\e", "new\nline", ""] {
            let quoted = quote(Shell::Sh, OsStr::new(word));
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {quoted}"))
                .output();
            assert_eq!(output.unwrap().stdout, word.as_bytes(), "{quoted}");
        }
    }

    #[test]
    fn fish_escapes_inside_its_quotes() {
        assert_eq!(quote(Shell::Fish, OsStr::new("it's \\")), "'it\\'s \\\\'");
    }
}
