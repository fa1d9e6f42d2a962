//! Asks for confirmation of something that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use bulkhead_model::printable::{MESSAGE, printable};

/// Why the operation is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum NotConfirmed {
    /// There is nobody to ask.
    #[error("{0} There is no terminal to ask on: repeat the command with --yes to confirm it")]
    NoTerminal(String),
    /// The answer was not yes.
    #[error("not confirmed: nothing has been changed")]
    Declined,
    /// The terminal failed.
    #[error("cannot ask for confirmation: {0}; repeat the command with --yes to confirm it")]
    Terminal(io::Error),
}

/// Asks for confirmation of `consequence`, a sentence, unless it was given before by `yes`.
///
/// # Errors
/// See [`NotConfirmed`].
pub fn confirm(consequence: &str, yes: bool) -> Result<(), NotConfirmed> {
    if yes {
        return Ok(());
    }
    let (input, mut output) = (io::stdin(), io::stderr());
    if !input.is_terminal() || !output.is_terminal() {
        return Err(NotConfirmed::NoTerminal(consequence.to_owned()));
    }
    let mut answer = String::new();
    let question = format!("{} Continue? [y/N] ", printable(consequence, MESSAGE));
    output.write_all(question.as_bytes()).map_err(NotConfirmed::Terminal)?;
    input.lock().read_line(&mut answer).map_err(NotConfirmed::Terminal)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(NotConfirmed::Declined),
    }
}
