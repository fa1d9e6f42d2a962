//! Many agents on one control plane.

use std::time::{Duration, Instant};

use anyhow::Result;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::{log, requests, since};
use bulkhead_tests::cluster::storm::Wanted;
use bulkhead_tests::observe::processes;

use crate::add_agent;
use crate::claims::{alone, at_once, print_requests};

/// Claims made one after another, before the agents know of each other.
const LEARNING: usize = 10;

/// Prints what this many agents cost the API server, and how they share claims.
pub fn many(cluster: &mut Cluster, any_node: Wanted<'_>, number: usize) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    let before = requests(&cluster.access, None)?;
    let start = Instant::now();
    while cluster.agents.len() < number {
        add_agent(cluster)?;
    }
    println!("{number} agents started in {:.1} s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(30));
    let started = requests(&cluster.access, None)?;
    print_requests("requests as they started", number, &since(&before, &started));
    std::thread::sleep(Duration::from_secs(120));
    let idle = requests(&cluster.access, None)?;
    print_requests("requests of two idle minutes", number, &since(&started, &idle));
    let mut resident = 0;
    for agent in &mut cluster.agents {
        resident += processes::resident(agent.rig.running_frontend()?.pid())?;
    }
    println!("memory of a frontend, on average: {:.1} MiB", resident as f64 / number as f64 / 1_048_576.0);
    at_once(cluster, Wanted::EachNode, 10 * number, &format!("{number} agents"))?;
    alone(cluster, any_node, LEARNING)?;
    let refused = || -> Result<usize> {
        let log = log(&cluster.access, None)?;
        Ok(log.iter().filter(|request| request.verb == "patch" && request.status == 409).count())
    };
    let before = refused()?;
    alone(cluster, any_node, number)?;
    let conflicts = refused()? - before;
    println!("bids that came second: {conflicts}, {:.2} a claim", conflicts as f64 / number as f64);
    Ok(())
}
