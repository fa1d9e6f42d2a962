//! When it is a node's turn to bid for a claim.
//!
//! A claim has one sequence of turns, which all nodes share: a node's first is that of its rank, and each further one, if
//! nobody has got the claim, comes after as many as there are nodes. The turns follow each other closely at first, and
//! then at twice the distance each time. So only few nodes bid before it is known that one has the claim, however long
//! that takes and however many nodes there are; and however many of them cannot bid or are refused, the next comes soon.

use std::time::Duration;

/// The distance of the first two turns at least: somewhat longer than it takes for a bid to be known everywhere.
const FIRST: Duration = Duration::from_millis(25);

/// The distance does not grow any further.
const LONGEST: Duration = Duration::from_secs(5);

/// How often the distance doubles at most.
const DOUBLED: usize = 8;

/// A node's place among those that can bid for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// How many nodes come before it.
    pub before: usize,
    /// How many there are.
    pub nodes: usize,
}

impl Rank {
    /// Returns how long after a claim was first seen it is this node's turn to bid for it, once it has `made` bids in vain, if
    /// the API server takes as long as `latency` to answer.
    pub fn turn(self, made: usize, latency: Duration) -> Duration {
        begin(self.before.saturating_add(self.nodes.max(1).saturating_mul(made)), latency)
    }
}

/// When the turn of that number begins.
fn begin(number: usize, latency: Duration) -> Duration {
    // A bid has to arrive, and then the news of it.
    let first = FIRST.max(latency * 2);
    let longest = LONGEST.max(first);
    let doubled = (0..number.min(DOUBLED)).map(|times| (first * (1 << times)).min(longest)).sum::<Duration>();
    let further = u32::try_from(number.saturating_sub(DOUBLED)).unwrap_or(u32::MAX);
    doubled.saturating_add(longest.saturating_mul(further))
}

#[cfg(test)]
mod tests;
