//! The cost of a storage agent: the time from a claim to its volume, alone and in a storm, its memory when other nodes
//! have claims, what its metrics cost, and the requests of many agents to an API server. Nothing here is a test, and
//! the figures depend on the machine.

mod agents;
mod claims;
mod local_path;
mod memory;
mod scrape;
mod stages;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use bulkhead_tests::bench;
use bulkhead_tests::cluster::control_plane::ControlPlane;
use bulkhead_tests::cluster::storm::Wanted;
use bulkhead_tests::cluster::{Cluster, manifests};
use bulkhead_tests::pool::Pool;
use bulkhead_tests::setting::{PoolFilesystem, Setting};
use clap::Parser;
use serde_json::json;

/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Measures agents on a control plane on this host.
#[derive(Debug, Parser)]
struct Options {
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
}

fn main() -> ExitCode {
    let options = Options::parse();
    // No filesystem is created: the pools are directories on this host.
    bench::run(Setting::on_host(PoolFilesystem::Ext4), |setting, work, templates| {
        let start = Instant::now();
        let control_plane = ControlPlane::start()?;
        println!("control plane ready: {:.1} s", start.elapsed().as_secs_f64());
        setting.control_plane = Some(control_plane.directory().to_owned());
        manifests::apply_cluster_wide(&control_plane.access()?.kubeconfig())?;
        let mut cluster = Cluster::enter(setting, work, templates)?;
        let measured = measure(&mut cluster, &options);
        for agent in &mut cluster.agents {
            agent.stand.abandon();
        }
        measured
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
    cluster.add_agent_with(|stand| {
        stand.pools.push(Pool::plain(&stand.work().join("pools/default"), "default")?);
        Ok(())
    })?;
    Ok(())
}
