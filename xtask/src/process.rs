//! Other programs: how they are found, run and reported when they fail.

use std::env;
use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// A command that is also looked for where an ordinary user's PATH does not look: mkfs and depmod are there.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs it with our own output, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {}", describe(command)))?;
    if !status.success() {
        bail!("{}: {status}", describe(command));
    }
    Ok(())
}

/// Runs it unseen; what it wrote is in the error when it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// Runs it and returns its standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("start {}", describe(command)))?;
    if !output.status.success() {
        bail!("{}: {}\n{}", describe(command), output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read the output of {}", describe(command)))
}

/// Runs it, shows its standard output and hands it to the sink as well.
pub fn run_with(command: &mut Command, mut sink: impl FnMut(&[u8])) -> Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("start {}", describe(command)))?;
    let mut output = child.stdout.take().context("a child without a standard output")?;
    let mut buffer = [0; 4096];
    loop {
        let length = output.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        io::stdout().write_all(&buffer[..length])?;
        io::stdout().flush()?;
        sink(&buffer[..length]);
    }
    Ok(child.wait()?)
}

/// The command line as a person would type it.
fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
