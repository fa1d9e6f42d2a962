//! Runs cases, each in a process of its own under a keeper.
//!
//! cargo-nextest would give each case a process, too. It is not used because it runs nothing around a run as a whole: the
//! API server that the cases of a cluster share is started once, made anew after a case that fails, and ended; and what
//! ends a case that hangs must unmount and detach what it has left. What it would save is the loop at the end of this file.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use tempfile::TempDir;

use crate::case::{Case, Elsewhere};
use crate::fixture::Fixture;
use crate::observe::{loops, mounts};
use crate::pace::{self, Allowance, Pace};
use crate::run_options::RunOptions;
use crate::times::Times;
use crate::turns::Turns;
use crate::{keeper, wait};

/// The last part of that file's name.
const PROCESSORS: &str = "processors";

/// Runs the suites against the programs beside this one, or in $BULKHEAD_BIN_DIR.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    run_options: RunOptions,
    #[command(flatten)]
    arguments: Arguments,
    /// Set by this program when it starts itself.
    #[arg(long, hide = true, requires_all = ["work", "templates"])]
    role: Option<Role>,
    #[arg(long, hide = true)]
    work: Option<PathBuf>,
    #[arg(long, hide = true)]
    templates: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Keeper,
    Body,
}

/// How the cases of a run are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// One line each, and the output of those that fail.
    Lines,
    /// The whole output of each, which ends with a line `N passed, N failed`; the totals are reported at the end.
    Everything,
}

/// Runs these cases as the command line says.
pub fn main<S: Fixture>(cases: Vec<Case<S>>, verbosity: Verbosity) -> ExitCode {
    let options = Options::parse();
    options.run_options.pace.clone().into_iter().for_each(Pace::is_told_at);
    let done = match (options.role, options.work, options.templates) {
        (Some(role), Some(work), Some(templates)) => {
            let name = options.arguments.filter.unwrap_or_default();
            in_role(role, &cases, &name, &options.run_options, &work, &templates).map(|()| ExitCode::SUCCESS)
        }
        _ if options.arguments.list => run_all(vec![(cases, options.run_options)], &options.arguments),
        _ => share_and_run(cases, verbosity, options.run_options, options.arguments),
    };
    done.unwrap_or_else(|error| {
        println!("{error:#}");
        ExitCode::FAILURE
    })
}

fn share_and_run<S: Fixture>(
    cases: Vec<Case<S>>,
    verbosity: Verbosity,
    mut run_options: RunOptions,
    mut arguments: Arguments,
) -> Result<ExitCode> {
    let pace = Pace::current();
    println!("this machine is {pace} times slower than one with nothing else to do: deadlines are {pace} times longer");
    Pace::follow()?;
    let side_by_side = match verbosity {
        Verbosity::Everything => 1,
        Verbosity::Lines => *arguments.test_threads.get_or_insert(S::side_by_side(&run_options)),
    };
    let mut shared = vec![S::share(&mut run_options, side_by_side)?];
    let done = match verbosity {
        Verbosity::Everything => run_each_in_full(&cases, &run_options),
        // Few share what the others do.
        Verbosity::Lines if arguments.filter.is_some() || side_by_side < 2 => {
            run_all(vec![(cases, run_options)], &arguments)
        }
        Verbosity::Lines => {
            let mut options_apart = run_options.clone();
            shared.extend(S::share_apart(&mut options_apart)?);
            let (alone, others) = cases.into_iter().partition(|case| shared.len() > 1 && case.is_alone());
            run_all(vec![(others, run_options), (alone, options_apart)], &arguments)
        }
    };
    let all_passed = done.as_ref().is_ok_and(|code| *code == ExitCode::SUCCESS);
    shared.into_iter().try_for_each(|shared| S::end(shared, all_passed))?;
    done
}

fn run_each_in_full<S: Fixture>(cases: &[Case<S>], run_options: &RunOptions) -> Result<ExitCode> {
    let scratch = run_options.place.make_scratch()?;
    let run_options = &run_options.in_slot(0);
    let (mut passed, mut failed) = (0, 0);
    for (number, case) in cases.iter().enumerate() {
        println!("== {}", short(case.name).replace('_', " "));
        match run_one(case, run_options, scratch.path(), number) {
            Ok(text) => {
                println!("{text}");
                let (more_passed, more_failed) = counts(&text).context("the test has printed no numbers")?;
                passed += more_passed;
                failed += more_failed;
            }
            Err(error) => {
                println!("{error:#}");
                failed += 1;
            }
        }
    }
    close(scratch)?;
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The numbers in the last line `N passed, N failed`.
fn counts(text: &str) -> Option<(u32, u32)> {
    text.lines().rev().find_map(|line| {
        let (passed, failed) = line.trim().strip_suffix(" failed")?.split_once(" passed, ")?;
        Some((passed.parse().ok()?, failed.parse().ok()?))
    })
}

/// Cases, and what they are told of the run.
type Group<S> = (Vec<Case<S>>, RunOptions);

/// Runs these groups of cases beside each other.
fn run_all<S: Fixture>(groups: Vec<Group<S>>, arguments: &Arguments) -> Result<ExitCode> {
    let Some((_, run_options)) = groups.first() else { bail!("there is nothing to run") };
    let (place, phase, each_time) = (run_options.place, run_options.phase, run_options.each_time);
    let scratch = place.make_scratch()?;
    let mut elsewhere = Vec::new();
    let times = Arc::new(Times::default());
    let groups: Vec<Vec<Trial>> = groups
        .into_iter()
        .map(|group| trials(group, scratch.path(), &times, &mut elsewhere))
        .filter(|trials| !trials.is_empty())
        .collect();
    report_elsewhere(&elsewhere);
    let conclusions: Vec<Conclusion> = thread::scope(|scope| {
        let running: Vec<_> =
            groups.into_iter().map(|trials| scope.spawn(|| libtest_mimic::run(arguments, trials))).collect();
        running.into_iter().map(|group| group.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    if phase.is_none() && !arguments.list {
        check_nothing_left(scratch.path())?;
    }
    close(scratch)?;
    let (passed, failed) = conclusions
        .iter()
        .fold((0, 0), |(passed, failed), conclusion| (passed + conclusion.num_passed, failed + conclusion.num_failed));
    if !arguments.list {
        if each_time {
            times.print_each();
        } else {
            times.print_slowest();
        }
        println!("{passed} passed, {failed} failed");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The cases of a group that are part of this run, in the order in which they start; the others say where they are.
fn trials<S: Fixture>(
    (mut cases, run_options): Group<S>,
    scratch: &Path,
    times: &Arc<Times>,
    elsewhere: &mut Vec<Elsewhere>,
) -> Vec<Trial> {
    let turns = Arc::new(Turns::default());
    cases.sort_by_key(Case::turn);
    let mut trials = Vec::new();
    for case in cases {
        match case.elsewhere(&run_options) {
            Some(reason) => elsewhere.push(reason),
            None => trials.push(trial(case, run_options.clone(), scratch, Arc::clone(&turns), Arc::clone(times))),
        }
    }
    trials
}

/// Fails if any mounts or loop devices are left. Each test has already been checked for its own.
fn check_nothing_left(scratch: &Path) -> Result<()> {
    // A pool's loop device is released a moment after it is unmounted.
    wait::until(pace::patience(Duration::from_secs(5)), || {
        let left = mounts::below(scratch)?;
        ensure!(left.is_empty(), "mounts are left over after the run: {left:?}");
        let mut left = loops::all()?;
        left.retain(|device| Path::new(&device.backing_file).starts_with(scratch));
        ensure!(left.is_empty(), "loop devices are left over after the run: {left:?}");
        Ok(())
    })
}

/// Reports how many cases are not part of this run, and why.
fn report_elsewhere(elsewhere: &[Elsewhere]) {
    let tell = |reason: Elsewhere, text: &str| match elsewhere.iter().filter(|other| **other == reason).count() {
        0 => {}
        number => eprintln!("{number} more tests {text}"),
    };
    tell(Elsewhere::NeedsQuota, "are about sizes and exist only with --place vm");
    tell(Elsewhere::RunsOnHost, "run on the host, and at most with --everything here");
    tell(Elsewhere::NeedsTime, "take long and exist only with --long");
    tell(Elsewhere::NeedsXfs, "are about XFS and exist only with --pool-fs xfs");
    tell(Elsewhere::NeedsRecent, "need a recent API server and exist only without --older-kubernetes");
    tell(Elsewhere::NeedsReboot, "belong to another phase of a test that a reboot interrupts");
}

/// Removes the scratch directory, but not what one phase leaves for the next.
fn close(scratch: TempDir) -> Result<()> {
    let path = scratch.keep();
    let kept = fs::read_dir(&path)?.filter_map(Result::ok).any(|entry| entry.path().is_dir());
    if kept {
        return Ok(());
    }
    fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))
}

fn trial<S: Fixture>(
    case: Case<S>,
    run_options: RunOptions,
    scratch: &Path,
    turns: Arc<Turns>,
    times: Arc<Times>,
) -> Trial {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let scratch = scratch.to_owned();
    let name = case.name;
    Trial::test(short(name), move || {
        let turn = turns.wait(case.is_alone());
        let run_options = run_options.in_slot(turn.slot);
        let start = Instant::now();
        let outcome = run_one(&case, &run_options, &scratch, number);
        times.add(short(name), start.elapsed());
        // A keeper that was killed has not written it.
        if let Ok(text) = fs::read_to_string(processors_of(&scratch, number)) {
            times.add_processors(short(name), Duration::from_secs_f64(text.parse().unwrap_or_default()));
            let _ = fs::remove_file(processors_of(&scratch, number));
        }
        outcome.map(drop).map_err(|mut error| {
            if let Err(also) = S::renew(&run_options) {
                error =
                    error.context(format!("and what the next test in this slot needs cannot be made anew: {also:#}"));
            }
            Failed::from(format!("{error:#}"))
        })
    })
}

/// The file in which the keeper of this case says how much of the processors it took.
fn processors_of(scratch: &Path, number: usize) -> PathBuf {
    scratch.join(format!("t{number}.{PROCESSORS}"))
}

/// Runs a case under a keeper and returns its output.
fn run_one<S: Fixture>(case: &Case<S>, run_options: &RunOptions, scratch: &Path, number: usize) -> Result<String> {
    let work = scratch.join(format!("t{number}"));
    fs::create_dir(&work)?;
    let log = scratch.join(format!("t{number}.log"));
    let output = File::create(&log)?;
    // A terminal's signals to this program must not prevent the keeper from cleaning up after the test.
    let mut keeper = myself(Role::Keeper, case.name, run_options, &work, scratch)?
        .process_group(0)
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    // The keeper enforces its own, shorter limit on the test; this one is for the keeper itself.
    let mut allowance = Allowance::new(case.limit() + Duration::from_secs(60));
    let status = loop {
        if let Some(status) = wait::ended(&mut keeper, Duration::from_secs(1))? {
            break status;
        }
        if allowance.is_spent() {
            keeper.kill()?;
            bail!("not even the clean-up came to an end; see {}", work.display());
        }
    };
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    fs::remove_file(&log)?;
    if status.success() {
        return Ok(text);
    }
    bail!("{}", text.trim_end())
}

fn in_role<S: Fixture>(
    role: Role,
    cases: &[Case<S>],
    name: &str,
    run_options: &RunOptions,
    work: &Path,
    templates: &Path,
) -> Result<()> {
    let case = cases.iter().find(|case| case.name == name).with_context(|| format!("no test is called {name}"))?;
    match role {
        Role::Keeper => {
            let body = myself(Role::Body, name, run_options, work, templates)?;
            let kept = keeper::keep(case, run_options, work, body);
            let noted = keeper::processors()
                .and_then(|time| Ok(fs::write(work.with_extension(PROCESSORS), time.as_secs_f64().to_string())?));
            // What is wrong with the test comes first.
            kept.and(noted)
        }
        Role::Body => {
            drop_sys_resource()?;
            let mut fixture = S::set(case, run_options, work, templates)?;
            (case.body)(&mut fixture)?;
            fixture.leave()
        }
    }
}

/// Drops the capability with which ext4 lets a process write beyond a quota: tests need to notice the limit. Programs
/// that the test starts as root have it nevertheless.
fn drop_sys_resource() -> Result<()> {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    sets.permitted.remove(CapabilitySet::SYS_RESOURCE);
    sets.inheritable.remove(CapabilitySet::SYS_RESOURCE);
    Ok(set_capabilities(None, sets)?)
}

fn myself(role: Role, name: &str, run_options: &RunOptions, work: &Path, templates: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let role = match role {
        Role::Keeper => "keeper",
        Role::Body => "body",
    };
    command.args(["--role", role]).arg("--work").arg(work).arg("--templates").arg(templates);
    command.args(run_options.flags()).arg(name);
    Ok(command)
}

/// `theme::what_must_hold`, without the path of the suite's modules.
fn short(name: &str) -> &str {
    name.split_once("cases::").map_or(name, |(_, short)| short)
}
