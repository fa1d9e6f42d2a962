//! Unit and property tests: runs the test programs that the build has produced.

use anyhow::{Result, bail, ensure};

use super::count::Count;
use super::transcript::Transcript;
use crate::packages;
use crate::process::{command, run_with};
use crate::vm::Output;
use crate::workspace::{Architecture, TestProgram, cargo};

/// Runs them one after another, and the examples in the documentation. One that fails to run does not keep the others
/// from running.
pub fn run(programs: &[TestProgram], examples: bool, transcript: &mut Transcript<'_>) -> Result<Count> {
    ensure!(!programs.is_empty(), "there is no test program to run");
    let mut sum = Count::default();
    let mut broken = Vec::new();
    for program in programs {
        transcript.say(&format!("== {}", program.name));
        let mut test = command(&program.path);
        test.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
        // Only so does the standard library's harness say how long each test took.
        test.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        let since = transcript.counts();
        let status = run_with(&mut test, |bytes| transcript.push(Output::Stdout, bytes))?;
        match transcript.verdict(since, status) {
            Ok(count) => sum.add(count),
            Err(error) => broken.push(format!("{} {error}", program.name)),
        }
    }
    if examples {
        let mut test = cargo();
        test.args(["test", "--locked", "--quiet", "--workspace", "--doc", "--target", Architecture::host().triple()]);
        let since = transcript.counts();
        let status = run_with(&mut test, |bytes| transcript.push(Output::Stdout, bytes))?;
        match transcript.verdict_of_parts(since, status) {
            Ok(count) => sum.add(count),
            Err(error) => broken.push(format!("examples in the documentation: {error}")),
        }
    }
    if !broken.is_empty() {
        bail!("{} after {sum}", broken.join("; "));
    }
    Ok(sum)
}

/// The helper's system call filter as compiled for the other architecture, which numbers its system calls differently:
/// its unit tests, run on an emulated processor.
pub fn filter_elsewhere(transcript: &mut Transcript<'_>) -> Result<Count> {
    let other = Architecture::host().other();
    packages::require(&["qemu-user-static"])?;
    packages::require_target(other.triple())?;
    transcript.say(&format!("== the system call filter on {}", other.name()));
    let mut test = cargo();
    test.args(["test", "--locked", "--quiet", "--package", "bulkhead-privhelper", "--lib", "--target", other.triple()]);
    let runner = format!("CARGO_TARGET_{}_RUNNER", other.triple().replace('-', "_").to_uppercase());
    test.arg("start::filter").env(runner, format!("qemu-{}-static", other.name()));
    let since = transcript.counts();
    let status = run_with(&mut test, |bytes| transcript.push(Output::Stdout, bytes))?;
    transcript.verdict(since, status)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn files(directory: &Path) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                files.extend(self::files(&path)?);
            } else {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// tests/Cargo.toml says `test = false` for them.
    #[test]
    fn the_suites_hide_no_unit_test() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/src/bin");
        let files = files(&directory).expect("the programs of the suites");
        assert!(files.len() > 10, "{files:?}");
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file");
            assert!(!text.contains("#[test]"), "{}: put it into the library of the package", file.display());
        }
    }
}
