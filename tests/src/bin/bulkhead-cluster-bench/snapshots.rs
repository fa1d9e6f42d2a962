//! Snapshots and what is made from them, by the agent and, in turn with it, by csi-driver-host-path.

use std::fmt::Debug;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::bench::percentile;
use bulkhead_tests::bench::table::{aligned, number};
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::since;
use bulkhead_tests::cluster::control_plane::ControlPlane;
use bulkhead_tests::cluster::objects::{block, claim, from_claim, from_snapshot, on};
use bulkhead_tests::cluster::snapshots::CONTENTS;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use crate::LIMIT;
use crate::claims::print_requests;
use crate::driver::Driver;
use crate::host_path::HostPath;

/// A volume that is copied.
struct Source {
    /// Its size in MiB.
    size: u64,
    /// How many of these are written.
    written: u64,
}

const SOURCES: [Source; 2] = [Source { size: 64, written: 16 }, Source { size: 256, written: 256 }];

/// What is timed in a round.
const STEPS: [&str; 4] = ["empty claim to bound", "snapshot to ready", "restored claim to bound", "clone to bound"];

/// How many of each are made to count requests.
const COUNTED: usize = 5;

/// After this long, events about what has happened have been sent.
const QUIET: Duration = Duration::from_secs(3);

/// Prints the figures of the agent and, if its program is given, of csi-driver-host-path.
pub fn compare(
    cluster: &mut Cluster,
    control_plane: &ControlPlane,
    rounds: usize,
    host_path: Option<&Path>,
    work: &Path,
    templates: &Path,
) -> Result<()> {
    let mut drivers = vec![Driver::agent(cluster)?];
    let mut other = None;
    if let Some(program) = host_path {
        let (processes, driver) = HostPath::start(cluster, control_plane, program, work, templates)?;
        other = Some(processes);
        drivers.push(driver);
    }
    std::thread::sleep(QUIET);
    drivers.iter().try_for_each(|driver| driver.print_memory("when started"))?;
    for source in &SOURCES {
        time(cluster, &drivers, source, rounds)?;
    }
    drivers.iter().try_for_each(|driver| driver.print_memory("after that"))?;
    drivers.iter().try_for_each(|driver| count_requests(cluster, driver))?;
    if let Some(processes) = other {
        processes.end()?;
    }
    cluster.agents.pop().context("the agent")?.rig.finish()
}

/// Prints the times of all steps with one source, the drivers taking turns.
fn time(cluster: &Cluster, drivers: &[Driver], source: &Source, rounds: usize) -> Result<()> {
    let mut times = vec![Vec::new(); drivers.len()];
    for driver in drivers {
        make_source(cluster, driver, source)?;
    }
    // The first one includes the sidecars' start.
    for index in 0..=rounds {
        for (driver, times) in drivers.iter().zip(&mut times) {
            let round = round(cluster, driver, source).with_context(|| format!("a round of {}", driver.name))?;
            times.extend((index > 0).then_some(round));
        }
    }
    for driver in drivers {
        delete_claim(cluster, &name(driver, "source"))?;
    }
    let mut header = vec![format!("ms of {rounds} rounds; {} MiB, {} written", source.size, source.written)];
    for driver in drivers {
        header.extend([format!("{}, p50", driver.name), "longest".to_owned(), "ratio".to_owned()]);
    }
    let row = |(step, what): (usize, &&str)| {
        let mut row = vec![(*what).to_owned()];
        let mut first = None;
        for times in &times {
            let mut times: Vec<Duration> = times.iter().filter_map(|round| round.get(step)).copied().collect();
            times.sort();
            let at = |percent| percentile(&times, percent).as_secs_f64() * 1000.0;
            let baseline = *first.get_or_insert(at(50));
            row.extend([number(at(50)), number(at(100)), number(at(50) / baseline)]);
        }
        row
    };
    println!("{}", aligned(header, STEPS.iter().enumerate().map(row).collect()));
    Ok(())
}

/// Takes all steps once, and returns how long each took.
fn round(cluster: &Cluster, driver: &Driver, source: &Source) -> Result<[Duration; STEPS.len()]> {
    let [empty, taken, restored, copy] = ["empty", "taken", "restored", "copy"].map(|what| name(driver, what));
    let made = time_claim(cluster, &plain(cluster, driver, &empty, source))?;
    delete_claim(cluster, &empty)?;
    let ready = time_snapshot(cluster, driver, &taken)?;
    let back = time_claim(cluster, &from_snapshot(plain(cluster, driver, &restored, source), &taken))?;
    let cloned = time_claim(cluster, &from_claim(plain(cluster, driver, &copy, source), &name(driver, "source")))?;
    for claim in [&restored, &copy] {
        driver.check(cluster, claim, source.written)?;
        delete_claim(cluster, claim)?;
    }
    delete_snapshots(cluster, &[taken])?;
    Ok([made, ready, back, cloned])
}

/// Prints the driver's requests for snapshots, for claims made from one, and for deleting all of them.
fn count_requests(cluster: &Cluster, driver: &Driver) -> Result<()> {
    let [source, ..] = &SOURCES;
    make_source(cluster, driver, source)?;
    let names = |what: &str| (0..COUNTED).map(|index| name(driver, &format!("{what}-{index}"))).collect::<Vec<_>>();
    let (snapshots, claims) = (names("taken"), names("restored"));
    let count = |what: &str, act: &dyn Fn() -> Result<()>| -> Result<()> {
        std::thread::sleep(QUIET);
        let before = driver.requests(cluster)?;
        act()?;
        std::thread::sleep(QUIET);
        print_requests(
            &format!("{}: requests {what}", driver.name),
            COUNTED,
            &since(&before, &driver.requests(cluster)?),
        );
        Ok(())
    };
    count("for snapshots", &|| snapshots.iter().try_for_each(|taken| time_snapshot(cluster, driver, taken).map(drop)))?;
    count("for restored claims", &|| {
        let from = |claim: &String, taken: &String| from_snapshot(plain(cluster, driver, claim, source), taken);
        claims.iter().zip(&snapshots).try_for_each(|(claim, taken)| time_claim(cluster, &from(claim, taken)).map(drop))
    })?;
    count("to delete restored claims", &|| claims.iter().try_for_each(|claim| delete_claim(cluster, claim)))?;
    count("to delete snapshots", &|| delete_snapshots(cluster, &snapshots))?;
    delete_claim(cluster, &name(driver, "source"))
}

fn name(driver: &Driver, what: &str) -> String {
    format!("{}-{what}", driver.name)
}

/// A claim for an empty device of the source's size.
fn plain(cluster: &Cluster, driver: &Driver, name: &str, source: &Source) -> Value {
    on(block(claim(name, &driver.class, &format!("{}Mi", source.size))), &cluster.node())
}

fn make_source(cluster: &Cluster, driver: &Driver, source: &Source) -> Result<()> {
    let name = name(driver, "source");
    cluster.create_claim(&plain(cluster, driver, &name, source))?;
    driver.write(cluster, &name, source.written)
}

/// Deletes a bound claim, and waits until its volume is gone.
fn delete_claim(cluster: &Cluster, name: &str) -> Result<()> {
    let volume = cluster.bound(name)?.metadata.name.context("a name")?;
    cluster.delete_claim(name)?;
    cluster.volume_gone(&volume)
}

/// Deletes all snapshots, which have these names, and waits until they are gone.
fn delete_snapshots(cluster: &Cluster, names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| cluster.delete_snapshot(name))?;
    cluster.access.wait(LIMIT, "the snapshots to be deleted", || {
        let left = cluster.ask("GET", CONTENTS, None)?;
        ensure!(left["items"].as_array().is_some_and(Vec::is_empty), "some are left");
        Ok(())
    })
}

fn time_claim(cluster: &Cluster, claim: &Value) -> Result<Duration> {
    let is_bound = |claim: Option<&PersistentVolumeClaim>| {
        let status = claim.and_then(|claim| claim.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    cluster.access.run(time_until(cluster.claims(), from_value(claim.clone())?, is_bound))
}

fn time_snapshot(cluster: &Cluster, driver: &Driver, name: &str) -> Result<Duration> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    let kind = ApiResource::from_gvk_with_plural(&kind, "volumesnapshots");
    let source = json!({ "persistentVolumeClaimName": format!("{}-source", driver.name) });
    let spec = json!({ "spec": { "volumeSnapshotClassName": driver.snapshot_class, "source": source } });
    let snapshot = DynamicObject::new(name, &kind).data(spec);
    let snapshots = Api::namespaced_with(cluster.access.client(), &cluster.namespace, &kind);
    let is_ready = |snapshot: Option<&DynamicObject>| {
        snapshot.is_some_and(|snapshot| snapshot.data["status"]["readyToUse"] == true)
    };
    cluster.access.run(time_until(snapshots, snapshot, is_ready))
}

/// Creates an object, and returns the time until it is seen in a state.
async fn time_until<K>(objects: Api<K>, object: K, state: impl Condition<K> + Send + Sync + 'static) -> Result<Duration>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let name = object.name_any();
    let (watched, awaited) = (objects.clone(), name.clone());
    let seen = tokio::spawn(async move {
        let seen = tokio::time::timeout(LIMIT, await_condition(watched, &awaited, state)).await;
        seen.map(|seen| seen.map(|_| Instant::now()))
    });
    let start = Instant::now();
    objects.create(&PostParams::default(), &object).await.with_context(|| format!("create {name}"))?;
    let end = seen.await?.with_context(|| format!("{name} does not get ready"))??;
    Ok(end.saturating_duration_since(start))
}
