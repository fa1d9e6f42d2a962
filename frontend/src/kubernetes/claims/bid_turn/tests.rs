//! What claims that any node may take cost a cluster, by a simulation: its agents differ only in what they know.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tokio::time::Instant;

use super::*;
use crate::kubernetes::api::pace::{Ended, Measure};

const AGENTS: usize = 200;
const CLAIMS: usize = 40;

/// One agent in ten has died lately.
const DEAD: usize = 10;

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An agent looks at a claim that any node may take.
    Look(usize, usize),
    /// An agent wants to send its next request for a claim that it has.
    Want(usize, usize),
    /// A request of an agent for a claim is dealt with; it was sent at that moment.
    Arrive(usize, usize, Duration),
}

/// What an agent knows of a claim.
#[derive(Clone, Copy)]
struct Known {
    rank: Rank,
    since: Duration,
    made: usize,
}

/// A claim: who has it, since when, and what is still to be written about it.
#[derive(Clone, Copy, Default)]
struct Claim {
    taken: Option<(usize, Duration)>,
    left: usize,
    sent: usize,
    served: usize,
}

/// A cluster whose API server takes that long for everything, and refuses that share of the requests.
struct Cluster {
    latency: Duration,
    refused: f64,
    begun: Instant,
    random: u64,
    agents: Vec<Measure>,
    known: HashMap<(usize, usize), Known>,
    claims: Vec<Claim>,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    /// How many requests each agent has sent in each second.
    sent: HashMap<(usize, u64), usize>,
}

impl Cluster {
    fn new(latency: Duration, refused: f64) -> Self {
        let mut cluster = Self {
            latency,
            refused,
            begun: Instant::now(),
            random: 1,
            agents: (0..AGENTS).map(|_| Measure::default()).collect(),
            known: HashMap::new(),
            claims: vec![Claim { left: 2, ..Claim::default() }; CLAIMS],
            events: BinaryHeap::new(),
            sent: HashMap::new(),
        };
        for claim in 0..CLAIMS {
            let order: Vec<f64> = (0..AGENTS).map(|_| -cluster.share().ln()).collect();
            for (agent, place) in order.iter().enumerate().filter(|(agent, _)| agent % DEAD != 0) {
                // Each knows its own room better than the others do.
                let own = place * (0.8 + 0.4 * cluster.share());
                let before = order.iter().enumerate().filter(|(other, place)| *other != agent && **place < own).count();
                let since = latency.mul_f64(cluster.share());
                cluster.known.insert((agent, claim), Known { rank: Rank { before, nodes: AGENTS }, since, made: 0 });
                cluster.at(since, Event::Look(agent, claim));
            }
        }
        cluster
    }

    /// A random number between 0 and 1.
    fn share(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) as f64 + 1.0) / (f64::from(1_u32 << 31) + 1.0)
    }

    fn at(&mut self, moment: Duration, event: Event) {
        self.events.push(Reverse((moment, event)));
    }

    fn run(&mut self) -> Duration {
        let mut last = Duration::ZERO;
        while let Some(Reverse((now, event))) = self.events.pop() {
            match event {
                Event::Look(agent, claim) => self.look(now, agent, claim),
                Event::Want(agent, claim) => self.want(now, agent, claim),
                Event::Arrive(agent, claim, sent) => {
                    self.arrive(now, agent, claim, sent);
                    last = now;
                }
            }
        }
        last
    }

    fn look(&mut self, now: Duration, agent: usize, claim: usize) {
        if self.claims[claim].taken.is_some_and(|(_, taken)| now >= taken + self.latency) {
            return;
        }
        let Known { rank, since, made } = self.known[&(agent, claim)];
        let left = (since + rank.turn(made, self.agents[agent].latency())).saturating_sub(now);
        if !left.is_zero() {
            self.at(now + left, Event::Look(agent, claim));
        } else if self.send(now, agent, claim, Event::Look(agent, claim)) {
            self.known.entry((agent, claim)).and_modify(|known| known.made += 1);
        }
    }

    fn want(&mut self, now: Duration, agent: usize, claim: usize) {
        self.send(now, agent, claim, Event::Want(agent, claim));
    }

    /// Sends a request, if the agent may; otherwise `again` happens when it may.
    fn send(&mut self, now: Duration, agent: usize, claim: usize, again: Event) -> bool {
        if let Some(pause) = self.agents[agent].pause(self.begun + now) {
            self.at(now + pause.max(Duration::from_millis(100)), again);
            return false;
        }
        self.agents[agent].send();
        self.claims[claim].sent += 1;
        *self.sent.entry((agent, now.as_secs())).or_default() += 1;
        self.at(now + self.latency, Event::Arrive(agent, claim, now));
        true
    }

    fn arrive(&mut self, now: Duration, agent: usize, claim: usize, sent: Duration) {
        let is_refused = self.share() <= self.refused;
        // The answer may also be lost of what was done.
        let is_done = !is_refused || self.share() < 0.1;
        let how = if is_refused { Ended::Refused(Duration::from_secs(1)) } else { Ended::Answered };
        self.agents[agent].ended(self.begun + sent, self.begun + now, how);
        let state = &mut self.claims[claim];
        state.served += usize::from(is_done);
        match state.taken {
            None if is_done => {
                state.taken = Some((agent, now));
                self.at(now + self.latency, Event::Want(agent, claim));
            }
            Some((winner, _)) if winner == agent => {
                state.left = state.left.saturating_sub(usize::from(is_done));
                if state.left > 0 {
                    self.at(now + Duration::from_secs(u64::from(is_refused)), Event::Want(agent, claim));
                }
            }
            None => self.at(now + Duration::from_secs(1), Event::Look(agent, claim)),
            Some(_) => {}
        }
    }
}

#[test]
fn what_a_claim_costs_is_bounded_whatever_the_latency_and_the_refusals() {
    println!("latency, refused: sent and served of a claim, most a second of an agent, until the last");
    for milliseconds in [1, 10, 100, 1000, 10_000] {
        for refused in [0.0, 0.5, 0.9] {
            let mut cluster = Cluster::new(Duration::from_millis(milliseconds), refused);
            let end = cluster.run();
            assert!(cluster.claims.iter().all(|claim| claim.left == 0));
            let mean = |of: fn(&Claim) -> usize| cluster.claims.iter().map(of).sum::<usize>() as f64 / CLAIMS as f64;
            let (sent, served) = (mean(|claim| claim.sent), mean(|claim| claim.served));
            let fastest = cluster.sent.values().max().copied().unwrap_or_default();
            println!("{milliseconds} ms, {refused}: {sent:.1}, {served:.1}, {fastest}, {:.0} s", end.as_secs_f64());
            let bound = 10.0 + 0.04 * AGENTS as f64;
            assert!(served <= bound, "{milliseconds} ms, {refused}: {served}");
            assert!(sent <= bound / (1.0 - refused), "{milliseconds} ms, {refused}: {sent}");
        }
    }
}

#[test]
fn the_first_does_not_wait_and_whoever_comes_after_silence_does_not_wait_for_ever() {
    let turn = |before, made, latency| Rank { before, nodes: 10 }.turn(made, Duration::from_millis(latency));
    assert_eq!(turn(0, 0, 10_000), Duration::ZERO);
    assert_eq!(turn(1, 0, 1), FIRST);
    assert_eq!(turn(1, 0, 400), Duration::from_millis(800), "the news of a bid takes as long");
    assert_eq!(turn(9, 0, 1) + LONGEST, turn(0, 1, 1), "after the last of them comes the first again");
    assert!((0..9).all(|before| turn(before, 0, 1) < turn(before + 1, 0, 1)));
    assert!(turn(8, 0, 1) < Duration::from_secs(10), "eight that do not bid");
    assert!(turn(usize::MAX, usize::MAX, u64::MAX) > Duration::from_secs(1000));
}
