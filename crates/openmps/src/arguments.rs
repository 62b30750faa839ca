//! From words to a [`Cli`]: with a suggestion where a command's name is mistyped.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use crate::cli::Cli;
use crate::examples;

/// A name with more mistakes than these is another name.
const MOST_MISTAKES: usize = 2;

/// This process's command line; ends the process where it is wrong, or asks for help.
pub(crate) fn parse() -> Cli {
    let parsed = examples::command().try_get_matches();
    parsed.and_then(|words| Cli::from_arg_matches(&words)).unwrap_or_else(|mut error| {
        if error.kind() == ErrorKind::InvalidSubcommand
            && error.get(ContextKind::SuggestedSubcommand).is_none()
            && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
            && let Some(name) = nearest(word)
        {
            let names = ContextValue::Strings(vec![name]);
            error.insert(ContextKind::SuggestedSubcommand, names);
        }
        error.exit()
    })
}

/// The command that was meant. Swapped letters are one mistake, which the parser's own measure
/// counts as two.
fn nearest(word: &str) -> Option<String> {
    let commands = Cli::command();
    let known = commands.get_subcommands().filter(|command| !command.is_hide_set());
    let distances = known.map(|command| (strsim::osa_distance(word, command.get_name()), command));
    let (distance, command) = distances.min_by_key(|(distance, _)| *distance)?;
    let is_near = distance <= MOST_MISTAKES && distance < word.len().min(command.get_name().len());
    is_near.then(|| command.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn what_is_mistyped_is_found_and_what_is_something_else_is_not() {
        assert_eq!(nearest("rnu").as_deref(), Some("run"));
        assert_eq!(nearest("satus").as_deref(), Some("status"));
        assert_eq!(nearest("lgos").as_deref(), Some("logs"));
        assert_eq!(nearest("python"), None);
        assert_eq!(nearest("x"), None);
    }
}
