//! Lanes of steps that run side by side. A machine keeps about one processor busy, and the suites on this host wait much of
//! the time, so a host with two processors has work to do until the end.

use std::env::current_exe;
use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::count::Count;
use super::progress::Progress;
use super::report::Report;
use super::step::Step;
use super::suites::Suites;
use super::transcript::Transcript;
use super::unit;
use crate::process::{command, run_with};
use crate::progress::{say, set_topic};
use crate::vm::Machine;
use crate::workspace::TestProgram;

/// The steps of each lane, in their order, and how much it leaves the processors to the others (nice(1)): nothing where one case
/// waits for the other or times are measured, and the more the sooner it would be done by itself. So no lane runs alone at
/// the end. A step that uses another's machine follows it directly.
const LANES: [(i32, &[Step]); 6] = [
    (0, &[Step::Node]),
    (0, &[Step::Unit]),
    (2, &[Step::Kubernetes, Step::OlderKubernetes, Step::Selinux]),
    (2, &[Step::Xfs, Step::Sanity, Step::Reboot, Step::Systemd, Step::StorageE2e]),
    (4, &[Step::Ext4, Step::PowerCut]),
    (6, &[Step::Host, Step::Release]),
];

/// The same of checking the source meanwhile.
const NICE_OF_LINT: i32 = 10;

/// Has this thread leave the processors to others, and all that it starts.
fn be_nice(nice: i32) {
    // At worst it takes as much as they.
    let _ = rustix::process::nice(nice);
}

/// The steps of a run and what they need.
pub struct Schedule<'a> {
    /// The selected steps.
    pub steps: &'a [Step],
    /// The suites.
    pub suites: Suites<'a>,
    /// The programs with unit tests.
    pub unit_tests: Vec<TestProgram>,
    /// Whether to run the examples in the documentation as well.
    pub examples: bool,
    /// Whether the source is checked meanwhile.
    pub lint: bool,
}

impl Schedule<'_> {
    /// Runs all lanes, and returns when the last one has ended. A failing step does not keep the others from running.
    pub fn run(&self, report: &Report) {
        let wanted = |lane: &[Step]| lane.iter().copied().filter(|step| self.steps.contains(step)).collect::<Vec<_>>();
        let lanes = LANES.map(|(nice, lane)| (nice, wanted(lane)));
        let live = lanes.iter().filter(|(_, lane)| !lane.is_empty()).count() < 2;
        let progress = &Progress::default();
        let (open, closed) = channel();
        thread::scope(|scope| {
            if !live {
                scope.spawn(move || progress.say_until_closed(&closed));
            }
            if self.lint {
                scope.spawn(|| {
                    be_nice(NICE_OF_LINT);
                    check_source(report);
                });
            }
            let lanes = lanes.map(|(nice, lane)| {
                scope.spawn(move || {
                    be_nice(nice);
                    self.run_lane(lane, live, progress, report);
                })
            });
            let ended = lanes.map(|lane| lane.join());
            drop(open);
            // A panic in a lane is a panic of the whole run, which must not appear successful without the steps that
            // were lost.
            for lane in ended {
                lane.unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
    }

    fn run_lane(&self, lane: Vec<Step>, live: bool, progress: &Progress, report: &Report) {
        let mut left: Option<(Step, Machine)> = None;
        for step in lane {
            set_topic(step.name());
            say("begins");
            progress.begins(step);
            let start = Instant::now();
            let mut transcript = Transcript::new(step, progress, live);
            // If it belongs to another step, the machine ends here.
            let mut machine = left.take_if(|(of, _)| step.continues() == Some(*of)).map(|(_, machine)| machine);
            left = None;
            let result = self.run_step(step, &mut machine, &mut transcript);
            let time = start.elapsed();
            progress.ended(step);
            match &result {
                Ok(count) => say(format_args!("{count} in {:.0} s", time.as_secs_f64())),
                Err(_) => say(format_args!("broke after {:.0} s", time.as_secs_f64())),
            }
            // Leftovers of a failed test must not affect a later step.
            if result.as_ref().is_ok_and(|count| count.failed == 0) {
                left = machine.map(|machine| (step.continues().unwrap_or(step), machine));
            }
            report.step(step, time, result, transcript.close());
        }
    }

    fn run_step(&self, step: Step, machine: &mut Option<Machine>, transcript: &mut Transcript<'_>) -> Result<Count> {
        let count = match step {
            Step::Unit => {
                let mut sum = unit::run(&self.unit_tests, self.examples, transcript)?;
                if self.suites.everything {
                    sum.add(unit::filter_elsewhere(transcript)?);
                }
                sum
            }
            _ => self.suites.run(step, machine, transcript)?,
        };
        ensure!(self.suites.filter.is_some() || count != Count::default(), "ran no test");
        Ok(count)
    }
}

/// Runs `cargo xtask lint`, whose output is part of the error if it fails.
pub fn check_source(report: &Report) {
    report.preparation("check the source", || {
        let mut output = Vec::new();
        let mut lint = command(current_exe()?);
        let status = run_with(lint.arg("lint"), |part| output.extend_from_slice(part))?;
        ensure!(status.success(), "`cargo xtask lint` finds something\n{}", String::from_utf8_lossy(&output));
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_step_is_in_one_lane() {
        for step in Step::value_variants() {
            let lanes = LANES.iter().flat_map(|(_, lane)| lane.iter()).filter(|other| *other == step).count();
            // The rules are checked before the lanes start.
            assert_eq!(lanes, usize::from(*step != Step::Policy), "{step:?}");
        }
    }

    #[test]
    fn a_machine_is_still_there_for_the_step_that_goes_on_with_it() {
        for (lane, step) in LANES.iter().flat_map(|(_, lane)| lane.iter().map(move |step| (lane, *step))) {
            let Some(first) = step.continues() else { continue };
            let position = |wanted| lane.iter().position(|step| *step == wanted).expect("both are in the lane");
            for between in &lane[position(first) + 1..position(step)] {
                assert_eq!(between.continues(), Some(first), "{between:?} ends the machine that {step:?} needs");
            }
        }
    }
}
