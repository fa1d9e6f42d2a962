//! The agents' own share of the time from a claim to its volume, according to their metrics.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::monitoring;

use crate::scrape::PAUSE;

const METRIC: &str = "bulkhead_provisioning_duration_seconds";

/// The stages of a claim, counted from the moment its agent sees it.
const STAGES: [&str; 2] = ["made", "acknowledged"];

/// For each stage, how many claims have passed it, and after how many seconds in total.
#[derive(Clone, Copy)]
pub struct Passed([(f64, f64); 2]);

/// Reads the stages from all agents.
pub fn passed(cluster: &Cluster) -> Result<Passed> {
    std::thread::sleep(PAUSE);
    let mut passed = [(0.0, 0.0); 2];
    for agent in &cluster.agents {
        let (status, text) = monitoring::get(&agent.rig, "/metrics")?;
        ensure!(status == 200, "status {status}");
        for (stage, (number, seconds)) in STAGES.iter().zip(&mut passed) {
            *number += value(&text, &format!("{METRIC}_count{{stage=\"{stage}\"}} "))?;
            *seconds += value(&text, &format!("{METRIC}_sum{{stage=\"{stage}\"}} "))?;
        }
    }
    Ok(Passed(passed))
}

/// A metric's value, or 0 if nothing has been measured yet.
fn value(text: &str, name: &str) -> Result<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{name}: {value}")))
}

/// Prints the averages of the claims since `before`.
pub fn print(what: &str, before: &Passed, after: &Passed) {
    let averages = before.0.iter().zip(&after.0).map(|(before, after)| (after.1 - before.1) / (after.0 - before.0));
    let averages: Vec<f64> = averages.map(|seconds| seconds * 1000.0).collect();
    println!(
        "{what}: from the claim seen by the agent, on average: volume made {:.1} ms, its object acknowledged {:.1} ms",
        averages[0], averages[1]
    );
}
