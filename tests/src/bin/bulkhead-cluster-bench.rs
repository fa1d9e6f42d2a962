//! The cost of a storage agent: the time from a claim to its volume, alone and in a storm, its memory beside the claims
//! of other nodes, and the requests of many agents to an API server. Nothing here is a test, and the figures depend on
//! the machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_tests::bench::{self, percentile};
use bulkhead_tests::cluster::audit::{Requests, requests, since};
use bulkhead_tests::cluster::control_plane::ControlPlane;
use bulkhead_tests::cluster::objects::{PROVISIONER, claim, on};
use bulkhead_tests::cluster::{Cluster, manifests, storm};
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::setting::PoolFilesystem;
use clap::Parser;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{from_value, json};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(900);

/// Measures agents on a control plane on this host.
#[derive(Debug, Parser)]
struct Options {
    /// Claims one after another
    #[arg(long, default_value_t = 100)]
    alone: usize,
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
    // No filesystem is made: the pools are directories on this host.
    bench::run(PoolFilesystem::Ext4, |setting, work, templates| {
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
    print_memory(cluster, "when started")?;
    alone(cluster, options.alone)?;
    in_a_storm(cluster, options.storm, "one agent")?;
    print_memory(cluster, "after the storm")?;
    beside_foreign_claims(cluster, options.foreign)?;
    many_agents(cluster, options.agents)
}

fn add_agent(cluster: &mut Cluster) -> Result<()> {
    cluster.add_agent_with(|stand| {
        stand.pools.push(Pool::plain(&stand.work().join("pools/default"), "default")?);
        Ok(())
    })?;
    Ok(())
}

fn print_memory(cluster: &mut Cluster, when: &str) -> Result<()> {
    let frontend = processes::resident(cluster.agent().stand.running_frontend()?.pid())?;
    println!("memory of the frontend {when}: {:.1} MiB", frontend as f64 / 1_048_576.0);
    Ok(())
}

fn print_times(what: &str, times: &[Duration]) {
    let at = |percent| percentile(times, percent).as_secs_f64() * 1000.0;
    println!("{what}: claim to bound: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms", at(50), at(99), at(100));
}

fn alone(cluster: &Cluster, number: usize) -> Result<()> {
    let node = &cluster.agents[0].node;
    let before = requests(&cluster.access, Some(node))?;
    let mut times = Vec::new();
    for _ in 0..number {
        times.extend(cluster.access.run(storm::bind_all(cluster, 1, LIMIT))?);
        delete_all(cluster)?;
    }
    times.sort();
    if !times.is_empty() {
        print_times(&format!("{number} claims alone, each deleted"), &times);
        print_requests("requests", number, &since(&before, &requests(&cluster.access, Some(node))?));
    }
    Ok(())
}

fn in_a_storm(cluster: &Cluster, number: usize, who: &str) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    let before = requests(&cluster.access, None)?;
    let start = Instant::now();
    let times = cluster.access.run(storm::bind_all(cluster, number, LIMIT))?;
    let what = format!("{number} claims at once, {who}");
    println!("{what}: all bound in {:.1} s", start.elapsed().as_secs_f64());
    print_times(&what, &times);
    std::thread::sleep(Duration::from_secs(3));
    let bound = requests(&cluster.access, None)?;
    print_requests("requests to provision", number, &since(&before, &bound));
    let start = Instant::now();
    delete_all(cluster)?;
    println!("{what}: deleted in {:.1} s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(3));
    print_requests("requests to delete", number, &since(&bound, &requests(&cluster.access, None)?));
    Ok(())
}

fn print_requests(what: &str, number: usize, made: &Requests) {
    let all: usize = made.values().sum();
    println!("{what}: {all}, {:.2} a claim: {made:?}", all as f64 / number as f64);
}

fn delete_all(cluster: &Cluster) -> Result<()> {
    let claims = cluster.claims();
    cluster.access.run(claims.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    cluster.access.wait(LIMIT, "the volumes to be deleted", || {
        for agent in &cluster.agents {
            let left = agent.volumes()?.len();
            anyhow::ensure!(left == 0, "{left} are left on {}", agent.node);
        }
        Ok(())
    })
}

fn beside_foreign_claims(cluster: &mut Cluster, number: usize) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    // The controller manager would only spend time on them.
    let manager = cluster.access.component("kube-controller-manager");
    manager.hold()?;
    let start = Instant::now();
    cluster.access.run(make_foreign(cluster, number))?;
    println!("{number} foreign claims created in {:.1} s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(5));
    print_memory(cluster, &format!("as {number} foreign claims were made"))?;
    cluster.agent().stand.restart_frontend()?;
    std::thread::sleep(Duration::from_secs(15));
    print_memory(cluster, &format!("started beside {number} foreign claims"))?;
    manifests::remove(&cluster.access.kubeconfig(), "mutatingadmissionpolicybinding", "bulkhead-claims")?;
    cluster.agent().stand.restart_frontend()?;
    std::thread::sleep(Duration::from_secs(20));
    print_memory(cluster, &format!("started beside {number} foreign claims without the policy"))?;
    manifests::apply_cluster_wide(&cluster.access.kubeconfig())?;
    cluster.wait_until_policies_are_relied_on()?;
    cluster.agent().stand.restart_frontend()?;
    let claims = cluster.claims();
    cluster.access.run(claims.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    manager.release();
    cluster.access.wait(LIMIT, "the foreign claims to be deleted", || {
        let left = cluster.access.run(claims.list_metadata(&ListParams::default().limit(1)))?.items.len();
        anyhow::ensure!(left == 0, "some are left");
        Ok(())
    })
}

async fn make_foreign(cluster: &Cluster, number: usize) -> Result<()> {
    let claims = cluster.claims();
    let mut creating = JoinSet::new();
    for index in 0..number {
        let mut foreign = on(claim(&format!("foreign-{index}"), &cluster.class, "1Gi"), "elsewhere");
        foreign["metadata"]["annotations"][PROVISIONER] = json!(bulkhead_tests::kubelet::DRIVER);
        let foreign: PersistentVolumeClaim = from_value(foreign)?;
        let claims = claims.clone();
        creating.spawn(async move { claims.create(&PostParams::default(), &foreign).await.map(drop) });
        if creating.len() >= 32 {
            creating.join_next().await.context("a request")???;
        }
    }
    while let Some(created) = creating.join_next().await {
        created??;
    }
    Ok(())
}

fn many_agents(cluster: &mut Cluster, number: usize) -> Result<()> {
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
        resident += processes::resident(agent.stand.running_frontend()?.pid())?;
    }
    println!("memory of a frontend, on average: {:.1} MiB", resident as f64 / number as f64 / 1_048_576.0);
    in_a_storm(cluster, 10 * number, &format!("{number} agents"))
}
