//! The time from a claim to its volume.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::bench::percentile;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::{Requests, requests, since};
use bulkhead_tests::cluster::storm::{Wanted, bind_all, bind_by_hand};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::{LIMIT, scrape, stages};

/// Prints the times of claims, which must be sorted.
pub fn print_times(what: &str, times: &[Duration]) {
    let at = |percent| percentile(times, percent).as_secs_f64() * 1000.0;
    println!("{what}: claim to bound: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms", at(50), at(99), at(100));
}

fn name(wanted: Wanted<'_>) -> &'static str {
    match wanted {
        Wanted::EachNode => "each for a node",
        Wanted::AnyNode { .. } => "each for any node",
    }
}

/// Prints the floor of this control plane: a PersistentVolume written by hand as soon as a provisioner may write it.
pub fn by_hand(cluster: &mut Cluster, number: usize) -> Result<()> {
    let class = cluster.add_class(|class| {
        class["provisioner"] = json!("by.hand");
        class["volumeBindingMode"] = json!("Immediate");
    })?;
    let mut times = Vec::new();
    for _ in 0..number {
        times.push(cluster.access.run(bind_by_hand(cluster, &class, LIMIT))?);
    }
    times.sort();
    if !times.is_empty() {
        print_times(&format!("{number} claims alone, volumes written by hand"), &times);
    }
    Ok(())
}

/// Prints the times of claims made one after another, each deleted before the next, and the agents' requests.
pub fn alone(cluster: &Cluster, wanted: Wanted<'_>, number: usize) -> Result<()> {
    let (before, seen) = (requests(&cluster.access, None)?, stages::passed(cluster)?);
    let mut times = Vec::new();
    for _ in 0..number {
        times.extend(cluster.access.run(bind_all(cluster, wanted, 1, LIMIT))?);
        delete_all(cluster)?;
    }
    times.sort();
    if !times.is_empty() {
        let what = format!("{number} claims alone, {}", name(wanted));
        print_times(&what, &times);
        stages::print(&what, &seen, &stages::passed(cluster)?);
        print_requests("requests", number, &since(&before, &requests(&cluster.access, None)?));
    }
    Ok(())
}

/// Prints the times of concurrent claims, and the agents' requests.
pub fn at_once(cluster: &Cluster, wanted: Wanted<'_>, number: usize, who: &str) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    let (before, seen) = (requests(&cluster.access, None)?, stages::passed(cluster)?);
    let start = Instant::now();
    let times = cluster.access.run(bind_all(cluster, wanted, number, LIMIT))?;
    let what = format!("{number} claims at once, {who}");
    println!("{what}: all bound in {:.1} s", start.elapsed().as_secs_f64());
    print_times(&what, &times);
    stages::print(&what, &seen, &stages::passed(cluster)?);
    std::thread::sleep(Duration::from_secs(3));
    let bound = requests(&cluster.access, None)?;
    print_requests("requests to provision", number, &since(&before, &bound));
    scrape::print(cluster, &format!("beside {number} volumes, {who}"))?;
    let start = Instant::now();
    delete_all(cluster)?;
    println!("{what}: deleted in {:.1} s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(3));
    print_requests("requests to delete", number, &since(&bound, &requests(&cluster.access, None)?));
    Ok(())
}

/// Prints how many requests were made.
pub fn print_requests(what: &str, number: usize, made: &Requests) {
    let all: usize = made.values().sum();
    println!("{what}: {all}, {:.2} for each: {made:?}", all as f64 / number as f64);
}

fn delete_all(cluster: &Cluster) -> Result<()> {
    let claims = cluster.claims();
    cluster.access.run(claims.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    cluster.access.wait(LIMIT, "the volumes to be deleted", || {
        for agent in &cluster.agents {
            let left = agent.volumes()?.len();
            ensure!(left == 0, "{left} are left on {}", agent.node);
        }
        Ok(())
    })
}
