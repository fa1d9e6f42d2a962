//! Completion of the command line. kubectl completes a plugin's words by running `kubectl_complete-NAME` with them; the
//! answer is a line for each word that could stand in the place of the last, and a directive.
//!
//! Source: kubectl, "Extend kubectl with plugins", and cobra's completions, which kubectl passes them on to.

use std::iter::once;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use crate::options::Options;

/// What is to be called `kubectl_complete-bulkhead`.
#[cfg(unix)]
pub const SCRIPT: &str = "\
#!/bin/sh
# Completes the words of `kubectl bulkhead` for kubectl.
exec kubectl-bulkhead complete -- \"$@\"
";

/// What is to be called `kubectl_complete-bulkhead.cmd`.
#[cfg(windows)]
pub const SCRIPT: &str = "\
@rem Completes the words of `kubectl bulkhead` for kubectl.\r
@kubectl-bulkhead complete -- %*\r
";

/// cobra's directive that names of files do not fit either.
const NO_FILES: &str = ":4\n";

/// cobra's directive that leaves the rest to the shell, which knows its files.
const FILES: &str = ":0\n";

/// Returns what could stand in the place of the last of `words`.
pub fn answer(words: &[String]) -> String {
    let mut root = Options::command();
    root.build();
    let Some((last, before)) = words.split_last() else { return NO_FILES.to_owned() };
    let mut command = &root;
    // The option whose value comes next.
    let mut option = None;
    for word in before {
        if option.take().is_some() {
            continue;
        }
        option = takes_value(command, word);
        if let Some(below) = command.find_subcommand(word) {
            command = below;
        }
    }
    let fits = |word: &str| word.starts_with(last.as_str());
    if let Some(option) = option {
        let values: Vec<_> = option.get_possible_values();
        let directive = if values.is_empty() { FILES } else { NO_FILES };
        let values = values.iter().filter(|value| fits(value.get_name()));
        return lines(values.map(|value| (value.get_name().to_owned(), value.get_help())), directive);
    }
    if last.starts_with('-') {
        let options = command.get_arguments().filter(|option| !option.is_hide_set());
        let options = options.filter_map(|option| Some((format!("--{}", option.get_long()?), option.get_help())));
        return lines(options.filter(|(word, _)| fits(word)), NO_FILES);
    }
    let commands = command.get_subcommands().filter(|below| !below.is_hide_set() && fits(below.get_name()));
    lines(commands.map(|below| (below.get_name().to_owned(), below.get_about())), NO_FILES)
}

/// The option called `word`, if its value is the next word.
fn takes_value<'c>(command: &'c Command, word: &str) -> Option<&'c Arg> {
    let is_called = |option: &&Arg| match word.strip_prefix("--") {
        Some(long) => option.get_long() == Some(long),
        None => {
            word.strip_prefix('-').is_some_and(|short| option.get_short().is_some_and(|it| short == it.to_string()))
        }
    };
    command.get_arguments().find(is_called).filter(|option| option.get_action().takes_values())
}

fn lines<'c>(words: impl Iterator<Item = (String, Option<&'c StyledStr>)>, directive: &str) -> String {
    let line = |(word, help): (String, Option<&StyledStr>)| match help {
        Some(help) => format!("{word}\t{help}\n"),
        None => format!("{word}\n"),
    };
    words.map(line).chain(once(directive.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(words: &[&str]) -> Vec<String> {
        let answer = answer(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        answer.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn commands_options_and_values_are_offered() {
        assert_eq!(offered(&["vol"]), ["volumes", ":4"]);
        assert!(offered(&[""]).contains(&"release-node".to_owned()) && !offered(&[""]).contains(&"man".to_owned()));
        assert_eq!(offered(&["volumes", "--names"]), ["--namespace", ":4"]);
        assert_eq!(offered(&["--context", "volumes", "po"]), ["pools", ":4"], "a context may be called so");
        assert_eq!(offered(&["volumes", "-o", ""]), ["json", "yaml", "wide", ":4"]);
        assert_eq!(offered(&["volumes", "--output", "w"]), ["wide", ":4"]);
        assert_eq!(offered(&["--kubeconfig", ""]), [":0"]);
        assert_eq!(offered(&["release-node", ""]), [":4"]);
    }
}
