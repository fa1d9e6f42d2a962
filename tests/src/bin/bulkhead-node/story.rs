//! The checks in their order. They build on each other, so that one boot of the machine serves all of them.

use std::time::Instant;

use anyhow::Result;
use bulkhead_tests::node::Node;

use crate::deployment::{self, Deployment};

/// What the checks share.
#[derive(Debug)]
pub struct Story<'a> {
    /// The node.
    pub node: &'a Node,
    /// How Bulkhead runs on it.
    pub deployment: Deployment,
    /// The room that the node had at the beginning, in bytes.
    pub room: u64,
    /// How many checks have passed.
    pub passed: usize,
    /// How many have failed.
    pub failed: usize,
}

/// One check.
pub type Check = fn(&mut Story<'_>) -> Result<()>;

impl<'a> Story<'a> {
    /// A story that has not begun.
    ///
    /// # Errors
    /// When nobody tells of the node's room.
    pub fn new(node: &'a Node, deployment: Deployment) -> Result<Self> {
        Ok(Self { node, deployment, room: deployment::room(node)?, passed: 0, failed: 0 })
    }

    /// Runs the checks, with a line for each. One that fails does not keep the others from running.
    pub fn tell(&mut self, checks: &[(&str, Check)]) {
        for (name, check) in checks {
            let start = Instant::now();
            let result = check(self);
            let seconds = start.elapsed().as_secs_f64();
            match result {
                Ok(()) => {
                    self.passed += 1;
                    println!("{}: {name} ... ok ({seconds:.1} s)", self.deployment.name());
                }
                Err(error) => {
                    self.failed += 1;
                    println!("{}: {name} ... FAILED ({seconds:.1} s): {error:#}", self.deployment.name());
                    self.node.tell_logs();
                }
            }
        }
    }
}
