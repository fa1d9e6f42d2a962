//! The tools' manual pages: what clap knows of a command, and what it has no place for.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::pages::Pages;

/// A section that clap does not know: exit status, environment, files or examples.
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// What is explained, each with its explanation. Command lines are examples; a command's page has only its own.
    pub entries: &'static [(&'static str, &'static str)],
}

/// How both tools end.
pub const EXIT_STATUS: Section = Section {
    title: "Exit status",
    entries: &[
        ("0", "It is done; doctor has found nothing that fails."),
        ("1", "It has failed, and standard error says why; doctor has found something that fails."),
        ("2", "The command line is not understood."),
    ],
};

/// The pages cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ManualError {
    /// The directory cannot be opened.
    #[error("cannot open the directory {}: {error}; does it exist, and is it no link to another?", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A page cannot be written.
    #[error("cannot write the manual page {page} in {}: {error}", directory.display())]
    Page {
        /// The page's name.
        page: String,
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// The sections as `--help` shows them.
pub fn help(sections: &[Section]) -> String {
    let mut text = String::new();
    for Section { title, entries } in sections {
        text += &format!("{title}:\n");
        entries.iter().for_each(|(term, explanation)| text += &format!("  {term}\n          {explanation}\n"));
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// Writes a page for `command` and for each of its subcommands, each with `sections`. Pages that are there are
/// replaced.
///
/// # Errors
/// See [`ManualError`].
pub fn write(command: Command, sections: &[Section], directory: &Path) -> Result<(), ManualError> {
    let opened =
        Pages::open(directory).map_err(|error| ManualError::Directory { directory: directory.to_owned(), error })?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for (page, text) in pages(&command, sections) {
        opened.put(&page, &text).map_err(|error| ManualError::Page { page, directory: directory.to_owned(), error })?;
    }
    Ok(())
}

/// The pages of a command and of those below it: name and text.
fn pages(command: &Command, sections: &[Section]) -> Vec<(String, Vec<u8>)> {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    let mut pages: Vec<_> = shown.flat_map(|below| pages(below, sections)).collect();
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = render(&man, command, sections, &mut text);
    pages.push((man.get_filename(), text));
    pages
}

fn render(man: &Man, command: &Command, sections: &[Section], out: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    let own = command.get_bin_name().unwrap_or_default();
    let program = own.split(' ').next().unwrap_or_default();
    for Section { title, entries } in sections {
        let is_here = |term: &str| !term.starts_with(program) || term.starts_with(own);
        let mut entries = entries.iter().filter(|(term, _)| is_here(term)).peekable();
        if entries.peek().is_some() {
            let mut roff = Roff::new();
            roff.control("SH", [title.to_uppercase().as_str()]);
            for (term, explanation) in entries {
                roff.control("TP", []).text([bold(*term)]).text([roman(*explanation)]);
            }
            roff.to_writer(out)?;
        }
    }
    // Only the program itself has one.
    if command.get_version().is_some() { man.render_version_section(out) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Arg;

    use super::*;

    const SECTIONS: [Section; 2] = [
        Section { title: "Exit status", entries: &[("0", "It is done.")] },
        Section {
            title: "Examples",
            entries: &[("tool draw --red", "Draws."), ("tool paint", "Paints."), ("tool", "Does both.")],
        },
    ];

    fn command() -> Command {
        let draw = Command::new("draw").arg(Arg::new("red").long("red"));
        Command::new("tool").version("1").subcommands([draw, Command::new("paint")])
    }

    #[test]
    fn a_page_has_its_own_examples_and_what_is_the_same_for_all() {
        let directory = tempfile::tempdir().unwrap();
        write(command(), &SECTIONS, directory.path()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let (whole, draw) = (page("tool.1"), page("tool-draw.1"));
        for section in [".SH \"EXIT STATUS\"", ".SH EXAMPLES"] {
            assert!(whole.contains(section) && draw.contains(section), "{whole}{draw}");
        }
        assert!(whole.contains("Paints.") && whole.contains("Does both."), "{whole}");
        assert!(draw.contains("tool draw \\-\\-red") && !draw.contains("Paints."), "{draw}");
        assert!(help(&SECTIONS).starts_with("Exit status:\n  0\n          It is done.\n\nExamples:\n"));
    }
}
