//! `--fuzz`: libFuzzer looks for input that makes a target of tests/fuzz panic, beginning with the target's seeds.

use std::collections::VecDeque;
use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::cargo_tool::FUZZ;
use crate::packages;
use crate::process::{capture, command, run_cargo, run_with};
use crate::progress::{say, timed};
use crate::workspace::{Architecture, Workspace, cargo};

/// The shells around the targets, a workspace of its own.
pub const SHELLS: &str = "tests/fuzz/libfuzzer";
/// The first input of each target: a directory for each.
const SEEDS: &str = "tests/fuzz/seeds";

/// Seconds for each target, unless this says otherwise.
const SECONDS: u64 = 60;
const VARIABLE: &str = "BULKHEAD_FUZZ_SECONDS";

/// How often somebody who waits hears how far it is.
const NEWS: Duration = Duration::from_secs(20);
/// How many lines of what a target has last said are shown if it fails.
const LAST_WORDS: usize = 30;

/// Runs the targets whose names contain `word`, one after another. One that fails does not keep the others from running.
pub fn fuzz(workspace: &Workspace, word: Option<&str>) -> Result<ExitCode> {
    let targets = targets(&workspace.root.join(SEEDS), word.unwrap_or_default())?;
    let seconds = match env::var(VARIABLE) {
        Ok(seconds) => seconds.parse().with_context(|| format!("{VARIABLE} is not a number: {seconds:?}"))?,
        Err(_) => SECONDS,
    };
    // libFuzzer is compiled along with the targets, and is in C++.
    packages::require(&["g++"])?;
    let shells = workspace.root.join(SHELLS);
    let mut locked = cargo();
    locked.args(["metadata", "--locked", "--format-version", "1", "--manifest-path"]).arg(shells.join("Cargo.toml"));
    capture(&mut locked).with_context(|| {
        format!("{SHELLS}/Cargo.lock is to be brought up to date: cargo metadata --manifest-path {SHELLS}/Cargo.toml")
    })?;
    let programs = build(workspace, &shells)?;
    let mut failed = Vec::new();
    for target in &targets {
        if !run(workspace, target, &programs.join(target), seconds)? {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        println!("fuzz: ok");
        return Ok(ExitCode::SUCCESS);
    }
    println!("fuzz: FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The targets with `word` in their names.
fn targets(seeds: &Path, word: &str) -> Result<Vec<String>> {
    let names = fs::read_dir(seeds)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut all = names.collect::<Result<Vec<_>>>()?;
    all.sort();
    let found: Vec<String> = all.iter().filter(|name| name.contains(word)).cloned().collect();
    ensure!(!found.is_empty(), "there is no target {word:?}; there are {}", all.join(", "));
    Ok(found)
}

/// Builds all targets, and returns the directory that they are in. They consist of safe code: what a sanitizer would find
/// is not in it, and without one the pinned compiler can build them, for a target that libFuzzer's own code can be linked
/// with.
fn build(workspace: &Workspace, shells: &Path) -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", Architecture::host().name());
    let target = workspace.target.join("fuzz");
    let mut build = FUZZ.command()?;
    build.args(["fuzz", "build", "--sanitizer", "none", "--target", &triple]);
    build.arg("--fuzz-dir").arg(shells).arg("--target-dir").arg(&target);
    build.current_dir(&workspace.root);
    timed("building the targets", || run_cargo(&mut build))?;
    Ok(target.join(triple).join("release"))
}

/// Runs one target, and returns whether it holds. What was found to be worth keeping serves the next run.
fn run(workspace: &Workspace, target: &str, program: &Path, seconds: u64) -> Result<bool> {
    let place = |part: &str| workspace.target.join("fuzz").join(part).join(target);
    let (corpus, found) = (place("corpus"), place("found"));
    for directory in [&corpus, &found] {
        fs::create_dir_all(directory)?;
    }
    let mut fuzz = command(program);
    fuzz.arg(format!("-max_total_time={seconds}")).args(["-timeout=10", "-print_final_stats=1"]);
    fuzz.arg(format!("-artifact_prefix={}/", found.display()));
    // The way to the place that panicked would displace what the panic says.
    fuzz.env("RUST_BACKTRACE", "0").arg(corpus).arg(workspace.root.join(SEEDS).join(target));
    say(format_args!("{target} for {seconds} s …"));
    let mut seen = Seen::default();
    let mut told = Instant::now();
    let status = run_with(&mut fuzz, |line| {
        seen.add(String::from_utf8_lossy(line).trim_end());
        if told.elapsed() >= NEWS {
            told = Instant::now();
            say(format_args!("{target}: {}", seen.progress));
        }
    })?;
    if status.success() {
        println!("fuzz: {target}: ok: {}", seen.progress);
        return Ok(true);
    }
    println!("fuzz: {target}: FAILED: {status}");
    for line in &seen.last {
        println!("    {line}");
    }
    if let Some(input) = &seen.input {
        println!("    the input is {input}");
        println!("    to repeat it: {} {input}", program.display());
        println!("    once it is mended, keep it as a seed: cp {input} {SEEDS}/{target}/WHAT-IT-IS");
    }
    Ok(false)
}

/// What a target has printed.
#[derive(Debug, Default)]
struct Seen {
    /// How far it is, in libFuzzer's words.
    progress: String,
    /// The other lines that it printed last.
    last: VecDeque<String>,
    /// The file with the input that made it fail.
    input: Option<String>,
}

impl Seen {
    fn add(&mut self, line: &str) {
        // `#4194304	pulse  cov: 461 ft: 1277 corp: 142/6213b lim: 4096 exec/s: 59918 rss: 42Mb`
        if line.starts_with('#') && line.contains("cov: ") {
            let after = |name: &str| line.split_once(name)?.1.split_whitespace().next();
            let [number, coverage, features, rate] =
                ["#", "cov:", "ft:", "exec/s:"].map(|name| after(name).unwrap_or("?"));
            self.progress = format!("{number} inputs, {rate} a second, coverage {coverage}, {features} features of it");
            return;
        }
        if let Some((_, input)) = line.split_once("Test unit written to ") {
            self.input = Some(input.to_owned());
        }
        if self.last.len() == LAST_WORDS {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_prints_is_understood() {
        let mut seen = Seen::default();
        for line in [
            "INFO: Seed: 7",
            "#2\tINITED cov: 9 ft: 9 corp: 1/1b exec/s: 0 rss: 30Mb",
            "#4096\tpulse  cov: 61 ft: 77 corp: 14/62b lim: 8 exec/s: 2048 rss: 42Mb",
            "thread panicked",
            "artifact_prefix='x/'; Test unit written to x/crash-1",
        ] {
            seen.add(line);
        }
        assert_eq!(seen.progress, "4096 inputs, 2048 a second, coverage 61, 77 features of it");
        assert_eq!(seen.input.as_deref(), Some("x/crash-1"));
        assert_eq!(seen.last.len(), 3);
    }

    #[test]
    fn a_word_selects_targets() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(SEEDS);
        let all = targets(&seeds, "").expect("targets");
        assert!(all.len() > 5 && all.is_sorted());
        assert_eq!(targets(&seeds, "kubelet").expect("one"), ["kubelet_record"]);
        assert!(targets(&seeds, "nothing").unwrap_err().to_string().contains("there are api_answers, "));
    }
}
