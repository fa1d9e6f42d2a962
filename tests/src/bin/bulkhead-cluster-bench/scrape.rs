//! What metrics cost an agent.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::bench::percentile;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::monitoring;

use crate::memory;

/// How often it is scraped.
const SCRAPES: usize = 20;

/// An agent writes its metrics at most once in this time.
pub const PAUSE: Duration = Duration::from_millis(1100);

/// Prints the time and the size of a scrape of the first agent.
pub fn print(cluster: &Cluster, when: &str) -> Result<()> {
    let (mut times, mut length, mut samples) = (Vec::new(), 0, 0);
    for _ in 0..SCRAPES {
        let start = Instant::now();
        let (status, text) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
        times.push(start.elapsed());
        std::thread::sleep(PAUSE);
        ensure!(status == 200, "status {status}");
        length = text.len();
        samples = text.lines().filter(|line| !line.starts_with('#')).count();
    }
    times.sort();
    let at = |percent| percentile(&times, percent).as_secs_f64() * 1000.0;
    println!("a scrape {when}: p50 {:.2} ms, p99 {:.2} ms, {length} bytes, {samples} samples", at(50), at(99));
    Ok(())
}

/// Prints the memory of the first agent with and without metrics.
pub fn memory(cluster: &mut Cluster) -> Result<()> {
    print(cluster, "when started")?;
    memory::print(cluster, &format!("after {SCRAPES} scrapes"))?;
    let with = cluster.agent().rig.frontend_flags.clone();
    monitoring::leave_out(&mut cluster.agent().rig);
    cluster.agent().rig.restart_frontend()?;
    std::thread::sleep(Duration::from_secs(5));
    memory::print(cluster, "without metrics")?;
    cluster.agent().rig.frontend_flags = with;
    cluster.agent().rig.restart_frontend()
}
