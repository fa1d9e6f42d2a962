//! The checks, in order. They build on each other, so that a single boot of the machine serves all of them.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Error, Result};
use bulkhead_tests::node::Node;
use bulkhead_tests::times::Times;

use crate::deployment::{self, Deployment};

/// What the checks share.
#[derive(Debug)]
pub struct Story<'a> {
    /// The node.
    pub node: &'a Node,
    /// How Bulkhead runs on it.
    pub deployment: Deployment,
    /// The space that the node had at the beginning, in bytes.
    pub room: u64,
    /// How many pods the stateful set has.
    pub replicas: u32,
}

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What it shows.
    pub name: &'static str,
    /// When it runs.
    pub extent: Extent,
    /// The check.
    pub run: fn(&mut Story<'_>) -> Result<()>,
}

/// When a check runs. If everything was asked for, each check runs in each deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// In each deployment, because the deployment may matter.
    EachDeployment,
    /// In one deployment, unless everything was asked for.
    OneDeployment,
    /// Only if everything was asked for.
    Everything,
}

/// How the checks ended in all deployments.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many checks have passed.
    passed: usize,
    /// Those that have failed, with their errors.
    failed: Vec<(String, Error)>,
    /// How long each check took.
    times: Times,
}

impl Outcome {
    /// Runs one step, and prints a line for it.
    pub fn run(&mut self, node: &Node, deployment: Deployment, name: &str, step: impl FnOnce() -> Result<()>) -> bool {
        let name = format!("{}: {name}", deployment.name());
        let start = Instant::now();
        let result = step();
        let time = start.elapsed();
        self.times.add(&name, time);
        let seconds = time.as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("{name} ... ok ({seconds:.1} s)");
                true
            }
            Err(error) => {
                println!("{name} ... FAILED ({seconds:.1} s): {error:#}");
                node.print_logs();
                self.failed.push((name, error));
                false
            }
        }
    }

    /// Prints the time of each check, the failed ones again, for a summary that has no room for logs, and the counts.
    pub fn finish(self) -> ExitCode {
        self.times.print_each();
        for (name, error) in &self.failed {
            println!("---- {name} ----\n{error:#}\n");
        }
        println!("{} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl<'a> Story<'a> {
    /// A story that has not started yet.
    pub fn new(node: &'a Node, deployment: Deployment) -> Result<Self> {
        Ok(Self { node, deployment, room: deployment::room(node)?, replicas: 0 })
    }

    /// Runs the checks, and returns whether the machine is still there. A failing check does not keep the others from
    /// running, unless the machine has ended.
    pub fn tell(&mut self, checks: &[Check], outcome: &mut Outcome) -> bool {
        checks.iter().all(|check| {
            let passed = outcome.run(self.node, self.deployment, check.name, || (check.run)(self));
            passed || outcome.run(self.node, self.deployment, "the machine still runs", || self.node.machine.check())
        })
    }
}
