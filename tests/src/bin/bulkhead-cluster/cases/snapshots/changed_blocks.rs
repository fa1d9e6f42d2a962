//! Backup programs ask which blocks of a snapshot hold data or have changed, of whichever agent they are led to.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::changed_blocks::{AGENTS, AUDIENCE, Ranges, Service};
use bulkhead_tests::cluster::snapshots::CONTENTS;
use serde_json::json;
use tonic::{Code, Status};

use super::{image, made, write};

cases! {
    on Cluster;
    the_reference_client_is_served_by_whichever_agent_it_reaches: Bare + Alone("grants the agents reviews"),
    who_may_not_know_of_a_snapshot_is_told_nothing: Bare + Alone("grants the agents reviews"),
    a_new_certificate_is_used: Bare + Alone("grants the agents reviews"),
}

const BLOCK: i64 = 64 << 10;

/// Runs a test with two agents that serve, the first of which has no snapshot, and removes what they need of the cluster.
fn with_service(cluster: &mut Cluster, test: impl FnOnce(&mut Cluster, &mut Service) -> Result<()>) -> Result<()> {
    let mut service = Service::set_up(cluster)?;
    let done = begin(cluster, &service).and_then(|()| test(cluster, &mut service));
    let removed = service.remove(cluster);
    done.and(removed)
}

fn begin(cluster: &mut Cluster, service: &Service) -> Result<()> {
    cluster.class = cluster.add_class(|_| {})?;
    for address in AGENTS {
        cluster.add_agent_with(|rig| {
            rig.frontend_flags.extend(service.flags(address).map(Into::into));
            // Whatever is logged, a token is not.
            rig.frontend_flags.push("--log-level=trace".into());
            rig.add_pool("default")
        })?;
    }
    service.advertise(cluster, AGENTS[0])?;
    service.lead_to_agents(cluster)?;
    cluster.add_account("backup", true)
}

/// Fills a block of a volume of the second agent.
fn fill(cluster: &Cluster, object: &str, number: i64, byte: u8) -> Result<()> {
    let file = OpenOptions::new().write(true).open(image(&cluster.agents[1], object))?;
    file.write_all_at(&vec![byte; usize::try_from(BLOCK)?], u64::try_from(number * BLOCK)?)?;
    Ok(file.sync_all()?)
}

/// Takes a snapshot, and returns its handle.
fn taken(cluster: &Cluster, name: &str, claim: &str, class: &str) -> Result<String> {
    cluster.snapshot(name, claim, class)?;
    let content = cluster.snapshot_ready(name)?;
    Ok(content["status"]["snapshotHandle"].as_str().context("a handle")?.to_owned())
}

/// The file of a snapshot of the second agent: it has what a device that was made from it would have.
fn file_of(cluster: &Cluster, handle: &str) -> PathBuf {
    cluster.agents[1].rig.pool().volume(handle).join("image")
}

/// Whole blocks, whatever pieces they are told in.
fn blocks(ranges: &Ranges) -> Vec<i64> {
    let all = ranges.iter().flat_map(|(offset, length)| offset / BLOCK..(offset + length - 1) / BLOCK + 1);
    let mut blocks: Vec<_> = all.collect();
    blocks.dedup();
    blocks
}

fn copy_of(source: &Path, directory: &Path) -> Result<PathBuf> {
    let copy = directory.join("copy");
    fs::copy(source, &copy)?;
    Ok(copy)
}

fn the_reference_client_is_served_by_whichever_agent_it_reaches(cluster: &mut Cluster) -> Result<()> {
    with_service(cluster, |cluster, service| {
        let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.agents[1].node.clone());
        let object = made(cluster, "data", &node)?;
        for number in [0, 3, 4, 200] {
            fill(cluster, &object, number, 1)?;
        }
        let monday = taken(cluster, "monday", "data", &class)?;
        for number in [4, 7] {
            fill(cluster, &object, number, 2)?;
        }
        let tuesday = taken(cluster, "tuesday", "data", &class)?;
        let scratch = tempfile::tempdir()?;
        for address in AGENTS {
            service.advertise(cluster, address)?;
            let listed = cluster.listed("backup", &["-snapshot", "monday"])?;
            ensure!(blocks(&listed) == [0, 3, 4, 200], "by {address}: {listed:?}");
            let by_name = cluster.listed("backup", &["-snapshot", "tuesday", "-previous-snapshot", "monday"])?;
            let by_handle = cluster.listed("backup", &["-snapshot", "tuesday", "-previous-snapshot-id", &monday])?;
            ensure!(blocks(&by_name) == [4, 7] && by_handle == by_name, "by {address}: {by_name:?} {by_handle:?}");
            let offset = (4 * BLOCK).to_string();
            let rest = ["-snapshot", "monday", "-starting-offset", &offset, "-max-results", "1"];
            let rest = cluster.listed("backup", &rest)?;
            ensure!(blocks(&rest) == [4, 200], "by {address}: {rest:?}");

            let empty = scratch.path().join("empty");
            File::create(&empty)?.set_len(16 << 20)?;
            cluster.verify("backup", &file_of(cluster, &monday), &empty, &["-snapshot", "monday"])?;
            let copy = copy_of(&file_of(cluster, &monday), scratch.path())?;
            let since = ["-snapshot", "tuesday", "-previous-snapshot", "monday"];
            cluster.verify("backup", &file_of(cluster, &tuesday), &copy, &since)?;
        }
        let told = cluster.reference_client("stranger", &["-snapshot", "monday"])?.failed()?;
        ensure!(told.contains("serviceaccounts \"stranger\" not found"), "{told}");
        cluster.delete_snapshot("monday")?;
        cluster.delete_snapshot("tuesday")
    })
}

/// Checks that a call was refused with this code, for a reason that contains `part`.
fn refused(answer: Result<Ranges, Status>, code: Code, part: &str) -> Result<()> {
    match answer {
        Err(status) if status.code() == code && status.message().contains(part) => Ok(()),
        other => anyhow::bail!("not {code:?} with {part:?}: {other:?}"),
    }
}

fn who_may_not_know_of_a_snapshot_is_told_nothing(cluster: &mut Cluster) -> Result<()> {
    with_service(cluster, |cluster, service| {
        let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.agents[1].node.clone());
        let (data, other) = (made(cluster, "data", &node)?, made(cluster, "other", &node)?);
        write(&cluster.agents[1], &data, "monday")?;
        write(&cluster.agents[1], &other, "monday")?;
        let monday = taken(cluster, "monday", "data", &class)?;
        let tuesday = taken(cluster, "tuesday", "data", &class)?;
        let foreign = taken(cluster, "foreign", "other", &class)?;
        cluster.add_account("nobody", false)?;
        let token = cluster.account_token("backup", Some(AUDIENCE))?;
        let nobodys = cluster.account_token("nobody", Some(AUDIENCE))?;
        let servers = cluster.account_token("backup", None)?;
        let others = cluster.account_token("backup", Some("other.example.com"))?;
        let forged = token[..token.len() - 8].to_owned() + "AAAAAAAA";
        for address in AGENTS {
            let ask = |token: &str, base: Option<&str>, snapshot: &str, passed_on| {
                service.ask(cluster, address, token, (base, snapshot), passed_on)
            };
            let allowed =
                ask(&token, None, "monday", false).map_err(|status| anyhow::anyhow!("{address}: {status}"))?;
            ensure!(blocks(&allowed) == [0], "{address}: {allowed:?}");
            ensure!(ask(&token, Some(&monday), "tuesday", false).is_ok_and(|ranges| ranges.is_empty()), "{address}");
            for token in [servers.as_str(), &others, &forged, "x", &"x".repeat(20_000)] {
                refused(ask(token, None, "monday", false), Code::Unauthenticated, "security_token is not valid here")?;
            }
            refused(ask("", None, "monday", false), Code::InvalidArgument, "security_token is missing")?;
            // The same whether or not there is one.
            for snapshot in ["monday", "none"] {
                refused(
                    ask(&nobodys, None, snapshot, false),
                    Code::PermissionDenied,
                    "nobody may not get volumesnapshots",
                )?;
            }
            refused(ask(&token, None, "none", false), Code::NotFound, "has no VolumeSnapshot none")?;
            refused(ask(&token, None, "../monday", false), Code::NotFound, "has no VolumeSnapshot \"../monday\"")?;
            // Of another volume, of nothing, of a volume that is no snapshot, and of no name that there can be.
            for base in [foreign.as_str(), "snapshot-none", &data, "../x"] {
                refused(
                    ask(&token, Some(base), "tuesday", false),
                    Code::NotFound,
                    "of no VolumeSnapshot of the same volume",
                )?;
            }
        }
        let second = cluster.agents[1].node.clone();
        let loops = service.ask(cluster, AGENTS[0], &token, (None, "monday"), true);
        refused(loops, Code::Unavailable, &format!("the snapshot is on node {second}"))?;
        service
            .ask(cluster, AGENTS[1], &token, (None, "monday"), true)
            .map_err(|status| anyhow::anyhow!("{status}"))?;
        a_base_of_another_namespace(cluster, service, &token, &tuesday)?;
        // Of an account that is gone.
        let account = format!("/api/v1/namespaces/{}/serviceaccounts/backup", cluster.namespace);
        cluster.ask("DELETE", &account, None)?;
        cluster.access.wait(cluster.patience(), "the token to end with its account", || {
            let answer = service.ask(cluster, AGENTS[0], &token, (None, "monday"), false);
            refused(answer, Code::Unauthenticated, "security_token is not valid here")
        })?;
        for agent in &cluster.agents {
            let log = agent.log()?;
            for token in [&token, &nobodys, &servers, &others] {
                ensure!(!log.contains(token.as_str()), "the log of {} has a token", agent.node);
            }
        }
        for name in ["monday", "tuesday", "foreign"] {
            cluster.delete_snapshot(name)?;
        }
        Ok(())
    })
}

/// A snapshot of the same volume that an administrator has given to another namespace is none of this one's.
fn a_base_of_another_namespace(cluster: &Cluster, service: &Service, token: &str, handle: &str) -> Result<()> {
    let path = format!("{}/tuesday", cluster.snapshots());
    let content = cluster.ask("GET", &path, None)?["status"]["boundVolumeSnapshotContentName"].clone();
    let content = format!("{}/{}", CONTENTS, content.as_str().context("a content")?);
    let asked = || service.ask(cluster, AGENTS[1], token, (Some(handle), "monday"), false);
    ensure!(asked().is_ok(), "{:?}", asked());
    cluster.ask("PATCH", &content, Some(&json!({ "spec": { "deletionPolicy": "Retain" } })))?;
    cluster.delete_snapshot("tuesday")?;
    cluster.ask("DELETE", &content, None)?;
    cluster.is_gone(&content)?;
    cluster.access.wait(cluster.patience(), "the agent to know that it is gone", || {
        refused(asked(), Code::NotFound, "of no VolumeSnapshot of the same volume")
    })?;
    // In the namespace of the agents.
    let name = format!("{}-elsewhere", cluster.namespace);
    let elsewhere = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": { "name": name },
        "spec": {
            "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "snapshotHandle": handle },
            "sourceVolumeMode": "Block", "volumeSnapshotRef": { "namespace": "default", "name": name },
        },
    });
    cluster.ask("POST", CONTENTS, Some(&elsewhere))?;
    let snapshots = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "name": name },
        "spec": { "source": { "volumeSnapshotContentName": name } },
    });
    cluster.ask("POST", snapshots, Some(&snapshot))?;
    let snapshot = format!("{snapshots}/{name}");
    cluster.access.wait(cluster.patience(), "the snapshot to be found", || {
        let found = cluster.ask("GET", &snapshot, None)?;
        ensure!(found["status"]["readyToUse"] == true, "its status is {}", found["status"]);
        Ok(())
    })?;
    let told = refused(asked(), Code::NotFound, "of no VolumeSnapshot of the same volume");
    cluster.ask("DELETE", &snapshot, None)?;
    cluster.is_gone(&snapshot)?;
    told?;
    // As the test has begun.
    cluster.snapshot("tuesday", "data", &format!("{}-daily", cluster.namespace))?;
    cluster.snapshot_ready("tuesday").map(drop)
}

fn a_new_certificate_is_used(cluster: &mut Cluster) -> Result<()> {
    with_service(cluster, |cluster, service| {
        let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.agents[1].node.clone());
        made(cluster, "data", &node)?;
        taken(cluster, "monday", "data", &class)?;
        ensure!(cluster.listed("backup", &["-snapshot", "monday"])?.is_empty(), "nothing was written");
        service.renew()?;
        service.advertise(cluster, AGENTS[0])?;
        cluster.access.wait(cluster.patience(), "the new certificate to be used between the agents too", || {
            cluster.listed("backup", &["-snapshot", "monday"]).map(drop)
        })?;
        cluster.delete_snapshot("monday")
    })
}
