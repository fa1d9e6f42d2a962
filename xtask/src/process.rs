//! Running other programs: how they are found, and how their failures are reported.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::progress::say;

/// How often somebody who waits for a build hears how far it is.
const NEWS: Duration = Duration::from_secs(20);

/// A command that is also looked up outside an ordinary user's PATH: mkfs and depmod are elsewhere.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Runs it with our own output streams, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start {}", describe(command)))?;
    ensure!(status.success(), "{}: {status}", describe(command));
    Ok(())
}

/// Runs cargo with its output on standard error, except for the line that it has for each crate: a first build has
/// hundreds, and whoever waits is told how many there were so far.
pub fn run_cargo(command: &mut Command) -> Result<()> {
    let (mut crates, mut told) = (0, Instant::now());
    let status = run_with(command, |line| {
        let line = String::from_utf8_lossy(line);
        match line.split_whitespace().next() {
            Some("Compiling") => crates += 1,
            Some("Downloaded" | "Finished") => {}
            _ => eprint!("{line}"),
        }
        if told.elapsed() >= NEWS {
            told = Instant::now();
            say(format_args!("{crates} crates have been begun"));
        }
    })?;
    ensure!(status.success(), "{}: {status}", describe(command));
    Ok(())
}

/// Runs it without showing its output, which is part of the error if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// Runs it and returns its standard output.
pub fn capture(command: &mut Command) -> Result<String> {
    output(command, Stdio::piped())
}

/// The same, with its standard error going there, which is part of the error if it is a pipe.
pub fn output(command: &mut Command, errors: Stdio) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(errors).output();
    let output = output.with_context(|| format!("start {}", describe(command)))?;
    if !output.status.success() {
        let written = String::from_utf8_lossy(&output.stderr);
        bail!("{}", format!("{}: {}\n{written}", describe(command), output.status).trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read the output of {}", describe(command)))
}

/// Runs it and passes each line that it writes, to standard output or standard error, to the sink.
pub fn run_with(command: &mut Command, mut sink: impl FnMut(&[u8])) -> Result<ExitStatus> {
    let (reader, writer) = io::pipe()?;
    let child = command.stdout(writer.try_clone()?).stderr(writer).spawn();
    // The output ends when no process has the write end open any more, and `command` still has it.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.with_context(|| format!("start {}", describe(command)))?;
    let (mut reader, mut line) = (BufReader::new(reader), Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        sink(&line);
        line.clear();
    }
    Ok(child.wait()?)
}

/// The command line as a person would type it.
fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_fails_is_an_error_with_the_command() {
        run_cargo(command("sh").args(["-c", "echo '   Compiling a v1'; echo 'warning: b' >&2"])).expect("a success");
        let failed = run_cargo(command("sh").args(["-c", "printf 'error: without an end of line'; exit 3"]));
        assert!(failed.expect_err("a failure").to_string().contains("exit status: 3"));
    }
}
