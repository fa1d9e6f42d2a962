//! The cost of a storage agent: the time from a claim to its volume, alone and in a storm, its memory when other nodes
//! have claims, what its metrics cost, the requests of many agents to an API server, and snapshots. Nothing here is a test,
//! and the figures depend on the machine.

mod agents;
mod claims;
mod driver;
mod host_path;
mod local_path;
mod memory;
mod scrape;
mod snapshots;
mod stages;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use bulkhead_tests::bench;
use bulkhead_tests::cluster::control_plane::ControlPlane;
use bulkhead_tests::cluster::storm::Wanted;
use bulkhead_tests::cluster::{Cluster, manifests, snapshots as resources};
use bulkhead_tests::pool::Pool;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use clap::{Parser, ValueEnum};
use serde_json::json;

/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Measures agents on a control plane on this host.
#[derive(Debug, Parser)]
struct Options {
    /// Only these parts
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Claims one after another
    #[arg(long, default_value_t = 100)]
    alone: usize,
    /// Claims of local-path-provisioner one after another
    #[arg(long, default_value_t = 20)]
    local_path: usize,
    /// Claims at once
    #[arg(long, default_value_t = 1000)]
    storm: usize,
    /// Claims of another node
    #[arg(long, default_value_t = 20_000)]
    foreign: usize,
    /// Agents at once, each with a helper of its own
    #[arg(long, default_value_t = 100)]
    agents: usize,
    /// Snapshots, restored claims and clones of each size
    #[arg(long, default_value_t = 10)]
    snapshots: usize,
    /// The program of csi-driver-host-path, whose snapshots are taken in turn with the agent's
    #[arg(long)]
    host_path: Option<PathBuf>,
}

/// A part of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Claims, memory, metrics and requests.
    Claims,
    /// Snapshots, and volumes made from them.
    Snapshots,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    // No filesystem is created: the pools are directories on this host.
    bench::run(RunOptions::on_host(PoolFilesystem::Ext4), |run_options, work, templates| {
        let start = Instant::now();
        let mut control_plane = ControlPlane::start()?;
        println!("control plane ready: {:.1} s", start.elapsed().as_secs_f64());
        run_options.control_plane = Some(control_plane.directory().to_owned());
        manifests::apply_cluster_wide(&control_plane.access()?.kubeconfig())?;
        let mut cluster = Cluster::enter(run_options, work, templates)?;
        if options.wants(Part::Claims) {
            let measured = measure(&mut cluster, &options);
            for mut agent in std::mem::take(&mut cluster.agents) {
                agent.rig.abandon();
            }
            measured?;
        }
        if options.wants(Part::Snapshots) && options.snapshots > 0 {
            // Not before: an agent also watches snapshots where there are any.
            resources::define_resources(&control_plane.access()?.kubeconfig())?;
            control_plane.run_snapshot_controller()?;
            let host_path = options.host_path.as_deref();
            snapshots::compare(&mut cluster, &control_plane, options.snapshots, host_path, work, templates)?;
        }
        Ok(())
    })
}

fn measure(cluster: &mut Cluster, options: &Options) -> Result<()> {
    cluster.class = cluster.add_class(|class| class["parameters"] = json!({ "sparse": "true" }))?;
    add_agent(cluster)?;
    std::thread::sleep(Duration::from_secs(5));
    let immediate = cluster.add_class(|class| {
        class["parameters"] = json!({ "sparse": "true" });
        class["volumeBindingMode"] = json!("Immediate");
    })?;
    let any_node = Wanted::AnyNode { class: &immediate };
    memory::print(cluster, "when started")?;
    scrape::memory(cluster)?;
    claims::by_hand(cluster, options.alone)?;
    claims::alone(cluster, Wanted::EachNode, options.alone)?;
    claims::alone(cluster, any_node, options.alone)?;
    local_path::alone(cluster, options.local_path)?;
    claims::at_once(cluster, Wanted::EachNode, options.storm, "one agent")?;
    memory::print(cluster, "after the storm")?;
    memory::beside_foreign_claims(cluster, options.foreign)?;
    agents::many(cluster, any_node, options.agents)
}

fn add_agent(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent_with(|rig| {
        rig.pools.push(Pool::plain(&rig.work().join("pools/default"), "default")?);
        Ok(())
    })?;
    Ok(())
}
