//! What the demonstration prints, and the commands it types.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::run_options::program;

/// Announces a step.
pub fn step(text: &str) {
    println!("\n-- {text}");
}

/// Prints what a check has established.
pub fn found(text: &str) {
    println!("   ok: {text}");
}

/// Runs `bulkheadctl` with the words of `line`, shows the command and its output, and returns the output.
pub fn ctl(endpoint: &Path, line: &str) -> Result<String> {
    let (status, text) = typed(endpoint, line)?;
    ensure!(status, "`bulkheadctl {line}` failed");
    Ok(text)
}

/// Runs `bulkheadctl` with the words of `line`, which must be refused, and returns what it says.
pub fn ctl_refused(endpoint: &Path, line: &str) -> Result<String> {
    let (status, text) = typed(endpoint, line)?;
    ensure!(!status, "`bulkheadctl {line}` was not refused");
    Ok(text)
}

fn typed(endpoint: &Path, line: &str) -> Result<(bool, String)> {
    println!("   $ bulkheadctl {line}");
    let output = Command::new(program("bulkheadctl")?)
        .args(line.split_whitespace())
        .env("BULKHEAD_ENDPOINT", format!("unix://{}", endpoint.display()))
        .output()
        .context("run bulkheadctl")?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    text.lines().for_each(|line| println!("   | {line}"));
    Ok((output.status.success(), text))
}
