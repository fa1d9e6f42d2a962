//! The quick starts of docs/kubernetes.md with a release that is in a registry: one needs no disk, and its pool is a directory
//! of the root filesystem, here an ext4 without quotas.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_model::quantity::parse;
use bulkhead_tests::documented::{KUBERNETES, blocks, first_claim, run_all, section};
use bulkhead_tests::node::{Node, Registry, Release, eventually};

use crate::{documented, local_path};

/// What the page says of itself.
const HEADING: &str = "A claim in a minute";

/// Where the chart makes the pool.
const ROOT_POOL: &str = "/var/lib/bulkhead/default";

/// What the quick start shows.
pub const NAME: &str = "the first claim from a registry, without a disk or quotas";

/// Follows it, and undoes it. Then the same release is installed from its one file, and timed beside local-path-provisioner.
pub fn without_a_disk(node: &Node) -> Result<()> {
    let release = Release::given()?;
    let registry = Registry::with_release(node, &release)?;
    let [commands] =
        blocks(section(KUBERNETES, HEADING)?, "sh").try_into().ok().context("not one block of commands")?;
    let commands = registry.fill_in(&commands);
    let (install, doctor) = commands.trim_end().rsplit_once('\n').context("one command")?;
    let start = Instant::now();
    run_all(&node.kubectl, install)?;
    let tried = first(node, "helm install", start)
        .and_then(|_| is_on_the_root(node))
        .and_then(|()| eventually(|| run_all(&node.kubectl, doctor)))
        .and_then(|()| last(node));
    let removed = documented::helm_uninstall(node);
    // helm leaves it, with capacities by which a pod would be placed before there is an agent.
    node.kubectl.delete(&["namespace", "bulkhead-system"])?;
    node.machine.run("rm -rf /var/lib/bulkhead")?;
    tried.and(removed)?;
    let ours = from_one_file(node, &release)?.as_secs_f64();
    let theirs = local_path::first_claim_runs(node)?.as_secs_f64();
    println!("the same with local-path-provisioner: {theirs:.1} s; bulkhead takes {:.2} times as long", ours / theirs);
    Ok(())
}

/// The same with the release's manifest in place of helm. Returns how long it took until the pod ran.
pub fn from_one_file(node: &Node, release: &Release) -> Result<Duration> {
    let manifest = release.manifest();
    let manifest = manifest.to_str().context("the path of the release is not UTF-8")?;
    let start = Instant::now();
    node.kubectl.run(&["apply", "--server-side", "--filename", manifest])?;
    let tried = first(node, "kubectl apply", start)
        .and_then(|time| is_on_the_root(node).and_then(|()| last(node)).map(|()| time));
    node.kubectl.run(&["delete", "--cascade=foreground", "--timeout=240s", "--filename", manifest])?;
    node.machine.run("rm -rf /var/lib/bulkhead")?;
    tried
}

/// The first claim of the page, whose size holds. Returns how long it took until its pod ran.
fn first(node: &Node, installed: &str, start: Instant) -> Result<Duration> {
    let kubectl = &node.kubectl;
    // The class does not exist until the chart has made it.
    eventually(|| kubectl.apply(&first_claim()?))?;
    kubectl.wait_ready(&["first"])?;
    let time = start.elapsed();
    println!("{installed} to a pod that has its volume: {:.1} s", time.as_secs_f64());
    let told =
        kubectl.exec("first", "dd if=/dev/zero of=/data/full bs=1M count=400 2>&1; rm /data/full; df -k /data")?;
    ensure!(told.contains("No space left on device") && told.contains(&(236 << 10).to_string()), "{told}");
    Ok(time)
}

/// The pool is part of the root filesystem, which keeps its reserve, and could not limit anything itself.
fn is_on_the_root(node: &Node) -> Result<()> {
    let below = node.machine.run(&format!("findmnt --noheadings --output FSTYPE,OPTIONS --target {ROOT_POOL}"))?;
    ensure!(below.starts_with("ext4") && !below.contains("quota"), "the pool is on {below}");
    let pools = node.kubectl.get(&["csistoragecapacities", "--namespace=bulkhead-system"])?;
    let capacity = |class: &str| {
        let items = pools["items"].as_array()?;
        parse(items.iter().find(|item| item["storageClassName"] == class)?["capacity"].as_str()?)
    };
    let free = node.machine.run(&format!("df -B1 --output=avail,size {ROOT_POOL} | tail -n 1"))?;
    let sizes: Vec<u64> = free.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    let [free, size] = sizes[..] else { bail!("df printed {free}") };
    let room = capacity("bulkhead").context("the class has no room")?;
    ensure!(room > 0 && room <= free.saturating_sub(size / 10), "{room} of {free} bytes that are free of {size}");
    Ok(())
}

/// What the page says to do at the end.
pub fn last(node: &Node) -> Result<()> {
    let section = section(KUBERNETES, "First claim in five minutes")?;
    run_all(&node.kubectl, &blocks(section, "sh").pop().context("no commands")?)?;
    eventually(|| node.kubectl.gone(&["pv"]))
}
