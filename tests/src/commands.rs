//! The command-line tools, run as a person or a script would.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run_options::program;

/// What a command printed, and whether it succeeded.
#[derive(Clone, Debug)]
pub struct Printed {
    /// Whether its exit status was zero.
    pub success: bool,
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub errors: String,
}

impl Printed {
    /// Runs `command` without a terminal and captures what it prints.
    pub fn by(command: &mut Command) -> Result<Self> {
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
        Ok(Self::from(output))
    }

    /// The standard output of a command that must have succeeded.
    pub fn succeeded(self) -> Result<String> {
        ensure!(self.success, "it failed: {}{}", self.text, self.errors);
        Ok(self.text)
    }

    /// Everything printed by a command that must have failed.
    pub fn failed(self) -> Result<String> {
        let text = self.text + &self.errors;
        ensure!(!self.success && !text.contains("panicked"), "it was to fail, and to say why: {text}");
        Ok(text)
    }

    /// Checks that a line begins with these words, whatever the space between them, and returns the rest of it.
    pub fn row(text: &str, words: &[&str]) -> Result<String> {
        let found = text.lines().find_map(|line| {
            let mut rest = line;
            for word in words {
                rest = rest.strip_prefix(word)?.trim_start();
            }
            Some(rest.to_owned())
        });
        found.with_context(|| format!("no line begins with {words:?}:\n{text}"))
    }
}

impl From<Output> for Printed {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { success: output.status.success(), text: text(&output.stdout), errors: text(&output.stderr) }
    }
}

/// Runs a program that must refuse to start, and returns its message, which is on standard error alone.
pub fn refusal(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && !text.contains("panicked"), "it ended with {}: {text}", output.status);
    ensure!(output.stdout.is_empty(), "{command:?} writes to its standard output, too");
    Ok(text)
}

/// `bulkheadctl`, for the frontend at `socket`.
pub fn bulkheadctl(socket: &Path) -> Result<Command> {
    let mut command = Command::new(program("bulkheadctl")?);
    command.env("BULKHEAD_ENDPOINT", socket);
    Ok(command)
}

/// `kubectl bulkhead`, with an administrator's kubeconfig.
pub fn kubectl_bulkhead(kubeconfig: &Path) -> Result<Command> {
    let mut command = Command::new(program("kubectl-bulkhead")?);
    command.env("KUBECONFIG", kubeconfig);
    Ok(command)
}

/// Returns what `bulkheadctl --json` prints for these arguments.
pub fn bulkheadctl_json(socket: &Path, arguments: &[&str]) -> Result<Value> {
    let printed = Printed::by(bulkheadctl(socket)?.args(arguments).arg("--json"))?.succeeded()?;
    serde_json::from_str(&printed).with_context(|| format!("no JSON: {printed}"))
}
