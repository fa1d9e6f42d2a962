//! The kubelet's own record decides what is published at the kubelet's targets.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::kubelet::DRIVER;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::stand::Stand;
use tonic::Code;

cases! {
    a_recorded_volume_is_published: Kernel,
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
fn with_volumes(stand: &mut Stand, test: impl Fn(&mut Stand, &str, &Path, &Path) -> Result<()>) -> Result<()> {
    let csi = stand.csi()?;
    let directory = stand.kubelet.pod_target("pv-a", "pod-1")?;
    let beside = directory.parent().context("target without a parent")?.to_owned();
    let device = stand.kubelet.block_target("pv-b", "pod-1")?;
    stand.kubelet.block_record("pv-b", DRIVER, "nobody")?;
    let data = stand.kubelet.root().join("plugins/kubernetes.io/csi/volumeDevices/pv-b/data");
    fs::remove_file(data.join("vol_data.json"))?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    csi.create_volume(create("vol-b", SIZE, block()))?;
    test(stand, "vol-a", &directory, &beside)?;
    test(stand, "vol-b", &device, &data)?;
    for (id, target) in [("vol-a", &directory), ("vol-b", &device)] {
        csi.node_unpublish_volume(unpublish(id, target))?;
        csi.delete_volume(delete(id))?;
    }
    Ok(())
}

fn attempt(stand: &Stand, id: &str, target: &Path) -> Result<Result<(), tonic::Status>> {
    let capability = if id == "vol-a" { mount() } else { block() };
    Ok(stand.csi()?.node_publish_volume(publish(id, target, capability)).map(drop))
}

fn record(stand: &Stand, id: &str, target: &Path, driver: &str, volume: &str) -> Result<()> {
    if id == "vol-a" {
        stand.kubelet.record(target, driver, volume)
    } else {
        stand.kubelet.block_record("pv-b", driver, volume)
    }
}

fn check_refused(stand: &Stand, id: &str, target: &Path, part: &str) -> Result<()> {
    refused(attempt(stand, id, target)?, Code::PermissionDenied, part)?;
    ensure!(mounts::at(target)?.is_empty() && fs::symlink_metadata(target).is_err(), "something is left at the target");
    Ok(())
}

fn a_recorded_volume_is_published(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, _| {
        record(stand, id, target, DRIVER, id)?;
        attempt(stand, id, target)??;
        attempt(stand, id, target)??;
        ensure!(mounts::at(target)?.len() == 1);
        Ok(())
    })
}

fn a_missing_record_is_refused(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, _| check_refused(stand, id, target, "vol_data.json"))
}

fn a_record_of_another_volume_is_refused(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, _| {
        let other = if id == "vol-a" { "vol-b" } else { "vol-a" };
        record(stand, id, target, DRIVER, other)?;
        check_refused(stand, id, target, "another volume")
    })
}

fn a_record_of_another_driver_is_refused(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, _| {
        record(stand, id, target, "other.example", id)?;
        check_refused(stand, id, target, "another driver")
    })
}

fn a_record_that_is_not_roots_is_refused(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, directory| {
        record(stand, id, target, DRIVER, id)?;
        std::os::unix::fs::chown(directory.join("vol_data.json"), Some(901), None)?;
        check_refused(stand, id, target, "root")
    })
}

fn a_record_that_is_no_file_is_refused(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, directory| {
        let path = directory.join("vol_data.json");
        fs::create_dir(&path)?;
        check_refused(stand, id, target, "")?;
        fs::remove_dir(&path)?;
        record(stand, id, target, DRIVER, id)?;
        fs::rename(&path, directory.join("elsewhere.json"))?;
        std::os::unix::fs::symlink("elsewhere.json", &path)?;
        let answer = attempt(stand, id, target)?;
        ensure!(answer.is_err() && fs::symlink_metadata(target).is_err(), "{answer:?}");
        fs::remove_file(&path)?;
        let fifo = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0);
        fifo?;
        check_refused(stand, id, target, "")
    })
}

fn a_record_that_is_no_record_is_refused(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, directory| {
        let long =
            format!("{{\"driverName\":\"{DRIVER}\",\"volumeHandle\":\"{id}\",\"x\":\"{}\"}}", "x".repeat(1 << 20));
        let twice = format!("{{\"driverName\":\"{DRIVER}\",\"volumeHandle\":\"other\",\"volumeHandle\":\"{id}\"}}");
        // A duplicate key could be read in one way here and in another by the kubelet.
        for content in ["", "{", "[]", "null", "{}", "{\"driverName\":1}", "\u{0}", &long, &twice] {
            fs::write(directory.join("vol_data.json"), content)?;
            check_refused(stand, id, target, "").with_context(|| content.chars().take(40).collect::<String>())?;
        }
        Ok(())
    })
}

fn undoing_asks_no_record(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, directory| {
        record(stand, id, target, DRIVER, id)?;
        attempt(stand, id, target)??;
        fs::remove_file(directory.join("vol_data.json"))?;
        stand.csi()?.node_get_volume_stats(stats(id, target))?;
        stand.csi()?.node_unpublish_volume(unpublish(id, target))?;
        ensure!(fs::symlink_metadata(target).is_err());
        Ok(())
    })
}

fn the_global_map_path_is_no_target(stand: &mut Stand) -> Result<()> {
    with_volumes(stand, |stand, id, target, _| {
        record(stand, id, target, DRIVER, id)?;
        let directory = stand.kubelet.root().join("plugins/kubernetes.io/csi/volumeDevices/pv-b/dev");
        fs::create_dir_all(&directory)?;
        refused(attempt(stand, id, &directory.join("pod-1"))?, Code::PermissionDenied, "kubelet")
    })
}
