//! The kubelet's own record decides what is published at the kubelet's targets.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::ids::own;
use bulkhead_tests::kubelet::DRIVER;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    a_recorded_volume_is_published,
    a_missing_record_is_refused,
    a_record_of_another_volume_is_refused,
    a_record_of_another_driver_is_refused,
    a_record_that_is_not_roots_is_refused,
    a_record_that_is_no_file_is_refused,
    a_record_that_is_no_record_is_refused,
    undoing_asks_no_record,
    the_global_map_path_is_no_target,
}

const SIZE: i64 = 16 * MIB;

/// Volumes of both kinds, each with its target and the directory of its record; `vol-a` is a directory, `vol-b` a
/// device.
fn with_volumes(rig: &mut Rig, test: impl Fn(&mut Rig, &str, &Path, &Path) -> Result<()>) -> Result<()> {
    let csi = rig.csi()?;
    let directory = rig.kubelet.pod_target("pv-a", "pod-1")?;
    let beside = directory.parent().context("target without a parent")?.to_owned();
    let device = rig.kubelet.block_target("pv-b", "pod-1")?;
    rig.kubelet.block_record("pv-b", DRIVER, "nobody")?;
    let data = rig.kubelet.root().join("plugins/kubernetes.io/csi/volumeDevices/pv-b/data");
    fs::remove_file(data.join("vol_data.json"))?;
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    csi.create_volume(create(own("vol-b"), SIZE, block()))?;
    test(rig, own("vol-a"), &directory, &beside)?;
    test(rig, own("vol-b"), &device, &data)?;
    Ok(())
}

fn attempt(rig: &Rig, id: &str, target: &Path) -> Result<Result<(), tonic::Status>> {
    let capability = if id == own("vol-a") { mount() } else { block() };
    Ok(rig.csi()?.node_publish_volume(publish(id, target, capability)).map(drop))
}

fn record(rig: &Rig, id: &str, target: &Path, driver: &str, volume: &str) -> Result<()> {
    if id == own("vol-a") {
        rig.kubelet.record(target, driver, volume)
    } else {
        rig.kubelet.block_record("pv-b", driver, volume)
    }
}

fn check_refused(rig: &Rig, id: &str, target: &Path, part: &str) -> Result<()> {
    refused(attempt(rig, id, target)?, Code::PermissionDenied, part)?;
    ensure!(mounts::at(target)?.is_empty() && fs::symlink_metadata(target).is_err(), "something is left at the target");
    Ok(())
}

fn a_recorded_volume_is_published(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        record(rig, id, target, DRIVER, id)?;
        attempt(rig, id, target)??;
        attempt(rig, id, target)??;
        ensure!(mounts::at(target)?.len() == 1);
        Ok(())
    })
}

fn a_missing_record_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| check_refused(rig, id, target, "vol_data.json"))
}

fn a_record_of_another_volume_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let other = if id == own("vol-a") { own("vol-b") } else { own("vol-a") };
        record(rig, id, target, DRIVER, other)?;
        check_refused(rig, id, target, "another volume")
    })
}

fn a_record_of_another_driver_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        record(rig, id, target, "other.example", id)?;
        check_refused(rig, id, target, "another driver")
    })
}

fn a_record_that_is_not_roots_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, directory| {
        record(rig, id, target, DRIVER, id)?;
        std::os::unix::fs::chown(directory.join("vol_data.json"), Some(901), None)?;
        check_refused(rig, id, target, "root")
    })
}

fn a_record_that_is_no_file_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, directory| {
        let path = directory.join("vol_data.json");
        fs::create_dir(&path)?;
        check_refused(rig, id, target, "")?;
        fs::remove_dir(&path)?;
        record(rig, id, target, DRIVER, id)?;
        fs::rename(&path, directory.join("elsewhere.json"))?;
        std::os::unix::fs::symlink("elsewhere.json", &path)?;
        let answer = attempt(rig, id, target)?;
        ensure!(answer.is_err() && fs::symlink_metadata(target).is_err(), "{answer:?}");
        fs::remove_file(&path)?;
        let fifo = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0);
        fifo?;
        check_refused(rig, id, target, "")
    })
}

fn a_record_that_is_no_record_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, directory| {
        let long =
            format!("{{\"driverName\":\"{DRIVER}\",\"volumeHandle\":\"{id}\",\"x\":\"{}\"}}", "x".repeat(1 << 20));
        let twice = format!("{{\"driverName\":\"{DRIVER}\",\"volumeHandle\":\"other\",\"volumeHandle\":\"{id}\"}}");
        // A duplicate key could be read in one way here and in another by the kubelet.
        for content in ["", "{", "[]", "null", "{}", "{\"driverName\":1}", "\u{0}", &long, &twice] {
            fs::write(directory.join("vol_data.json"), content)?;
            check_refused(rig, id, target, "").with_context(|| content.chars().take(40).collect::<String>())?;
        }
        Ok(())
    })
}

fn undoing_asks_no_record(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, directory| {
        record(rig, id, target, DRIVER, id)?;
        attempt(rig, id, target)??;
        fs::remove_file(directory.join("vol_data.json"))?;
        rig.csi()?.node_get_volume_stats(stats(id, target))?;
        rig.csi()?.node_unpublish_volume(unpublish(id, target))?;
        ensure!(fs::symlink_metadata(target).is_err());
        Ok(())
    })
}

fn the_global_map_path_is_no_target(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        record(rig, id, target, DRIVER, id)?;
        let directory = rig.kubelet.root().join("plugins/kubernetes.io/csi/volumeDevices/pv-b/dev");
        fs::create_dir_all(&directory)?;
        refused(attempt(rig, id, &directory.join("pod-1"))?, Code::PermissionDenied, "kubelet")
    })
}
