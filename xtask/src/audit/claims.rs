//! The tables of SECURITY.md: which process keeps which capability, what the placer does, and which test proves which claim.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::Section;
use super::tests_by_name;
use crate::policy::files::{PAGE, table};
use crate::test::Step;

/// What `…` stands for in its table of claims.
const ON_THIS_HOST: &str = "cargo xtask test --host-only";

/// Capabilities by process.
pub fn capabilities(root: &Path) -> Result<Section> {
    let rows = table(root, "| process | user | capabilities |")?;
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| cell.replace(['`', '*'], "")).collect());
    Ok(Section {
        title: "Capabilities",
        note:
            "What each process keeps, as privhelper/src/capabilities.rs has it; a unit test compares the two. Between \
               calls that need one, none is effective."
                .to_owned(),
        columns: &["process", "user", "capabilities", "what it sees"],
        rows: rows.collect(),
    })
}

/// What the placer does for the keeper, and what it checks.
pub fn placer(root: &Path) -> Result<Section> {
    let rows = table(root, "| it is asked to | it does so only if |")?;
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| cell.replace('`', "")).collect());
    Ok(Section {
        title: "Placer",
        note: "All that the process with the capability to mount can be asked for.".to_owned(),
        columns: &["it is asked to", "it does so only if"],
        rows: rows.collect(),
    })
}

/// Claims, each with the tests that prove it. A command that selects no test is an error.
pub fn claims(root: &Path) -> Result<Section> {
    let tests = tests_by_name::all(root)?;
    let mut rows = Vec::new();
    for row in table(root, "| claim | command |")? {
        let [claim, commands] = &row[..] else { anyhow::bail!("{PAGE}: a claim without a command: {row:?}") };
        let found = shown_by(commands, &tests).with_context(|| format!("{PAGE}: {claim}"))?;
        rows.push(vec![found, commands.replace('`', "").replace('…', ON_THIS_HOST), claim.replace('`', "")]);
    }
    let note = format!("{} claims of {PAGE}, each with a command whose tests show it.", rows.len());
    Ok(Section { title: "Claims", note, columns: &["tests", "command", "claim"], rows })
}

/// Returns how many tests the commands in a row select.
fn shown_by(commands: &str, tests: &[String]) -> Result<String> {
    let mut found = 0;
    let mut steps = 0;
    let mut by_hand = 0;
    for command in commands.split('`').skip(1).step_by(2) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["cargo", "xtask", "test", "--step", step, ref filter @ ..] if filter.len() < 2 => {
                ensure!(Step::from_str(step, false).is_ok(), "there is no step {step}");
                match filter.first() {
                    Some(filter) => found += matching(tests, filter)?,
                    None => steps += 1,
                }
            }
            ["cargo", "xtask", "test", "--host-only" | "--vm-only" | "--all", filter] | ["…", filter] => {
                found += matching(tests, filter)?;
            }
            _ => by_hand += 1,
        }
    }
    ensure!(found + steps + by_hand > 0, "no command");
    Ok(match (found, steps) {
        (0, 0) => "by hand".to_owned(),
        (0, _) => "a step".to_owned(),
        _ => found.to_string(),
    })
}

fn matching(tests: &[String], filter: &str) -> Result<usize> {
    let number = tests.iter().filter(|test| test.contains(filter)).count();
    ensure!(number > 0, "no test has {filter:?} in its name");
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_without_a_test_is_found() {
        let tests = ["deletion::a_tree_goes".to_owned(), "deletion::a_link_goes".to_owned()];
        assert_eq!(shown_by("`cargo xtask test --host-only deletion`, `… a_link`", &tests).expect("three"), "3");
        assert_eq!(shown_by("`cargo xtask test --step systemd`", &tests).expect("a step"), "a step");
        assert_eq!(shown_by("`bulkhead-setup check` with flags", &tests).expect("by hand"), "by hand");
        for wrong in ["`cargo xtask test --host-only creation`", "`cargo xtask test --step none`", "none"] {
            assert!(shown_by(wrong, &tests).is_err(), "{wrong}");
        }
    }
}
