//! Unit and property tests: runs the test programs that the build has produced.

use anyhow::{Result, ensure};

use super::count::Count;
use super::transcript::Transcript;
use crate::packages;
use crate::process::command;
use crate::workspace::{Architecture, TestProgram, cargo};

/// Runs them one after another, and the examples in the documentation. One that fails to run does not keep the others
/// from running.
pub fn run(programs: &[TestProgram], examples: bool, transcript: &mut Transcript<'_>) -> Result<Count> {
    ensure!(!programs.is_empty(), "there is no test program to run");
    let mut sum = Count::default();
    let mut broken = Vec::new();
    let mut add = |name: &str, result: Result<Count>| match result {
        Ok(count) => sum.add(count),
        Err(error) => broken.push(format!("{name}: {error}")),
    };
    for program in programs {
        transcript.say(&format!("== {}", program.name));
        let mut test = command(&program.path);
        test.current_dir(&program.directory).env("CARGO_MANIFEST_DIR", &program.directory);
        // Only so does the standard library's harness say how long each test took.
        test.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        add(&program.name, transcript.run(&mut test));
    }
    if examples {
        let mut test = cargo();
        test.args(["test", "--locked", "--quiet", "--workspace", "--doc", "--target", Architecture::host().triple()]);
        add("examples in the documentation", transcript.run_parts(&mut test));
    }
    ensure!(broken.is_empty(), "{} after {sum}", broken.join("; "));
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
    transcript.run(&mut test)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::files::files;

    /// tests/Cargo.toml says `test = false` for them.
    #[test]
    fn the_suites_hide_no_unit_test() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/src/bin");
        let files = files(&directory).expect("the programs of the suites");
        assert!(files.len() > 10, "{:?}", files.keys());
        for (path, content) in files {
            let is_test = String::from_utf8_lossy(&content).contains("#[test]");
            assert!(!is_test, "{path}: put it into the library of the package");
        }
    }
}
