//! The machine that the figures belong to.

use std::fs;

use anyhow::Result;
use bulkhead_tests::run_options::Place;

use crate::options::Options;

/// Figures from a busier machine are worth little.
const QUIET: f64 = 0.25;

/// Returns what a reader of the figures must know, one item per line.
pub fn describe(options: &Options) -> Result<Vec<String>> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let processors = std::thread::available_parallelism()?.get();
    let kernel = rustix::system::uname();
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split_whitespace().next().unwrap_or_default();
    let build = if cfg!(debug_assertions) { "development" } else { "release" };
    let quotas = match options.place {
        Place::Host => "without quotas",
        Place::Vm => "with project quotas",
    };
    let mut lines = vec![
        format!("machine: {processors} × {model}, Linux {}", kernel.release().to_string_lossy()),
        format!("pool: {} in a file on a loop device, {quotas}", options.pool_fs.name()),
        format!("run: {}, {build} build, load average {load} at its start", options.size()),
    ];
    if load.parse::<f64>().is_ok_and(|load| load > QUIET * processors as f64) {
        lines.push("the machine was not quiet: compare ratios, and trust no time".to_owned());
    }
    Ok(lines)
}
