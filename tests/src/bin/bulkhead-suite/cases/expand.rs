//! Growing volumes while they are in use.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::observe::loops;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    both_kinds_grow_while_published,
    the_controller_grows_both_kinds_wholly,
    the_required_size_is_answered_and_not_the_limit,
    a_smaller_size_is_answered_with_the_current_one,
    without_a_range_the_current_size_is_answered,
    impossible_ranges_are_refused,
    what_is_not_there_is_not_found,
    missing_fields_are_refused,
    the_wrong_capability_is_refused,
    more_than_the_pool_has_is_out_of_range_and_changes_nothing,
    growth_survives_restarts,
    a_device_grows_under_a_live_writer: Filesystem,
    a_grown_volume_is_still_the_same_when_created_again,
}

const SIZE: i64 = 16 * MIB;

fn with_volumes(rig: &mut Rig, test: impl Fn(&mut Rig, &str, &Path, VolumeCapability) -> Result<()>) -> Result<()> {
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let target = rig.target(id);
        let csi = rig.csi()?;
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &target, capability.clone()))?;
        test(rig, id, &target, capability)?;
    }
    Ok(())
}

/// Checks the size in the statistics, and the device's own size if there is a device.
fn check_size(rig: &Rig, id: &str, target: &Path, bytes: i64) -> Result<()> {
    let total = rig.csi()?.node_get_volume_stats(stats(id, target))?.usage[0].total;
    ensure!(total == bytes, "{id} has {total} bytes, not {bytes}");
    for device in loops::backed_by(&rig.pool().device()?)? {
        ensure!(device.size()? == u64::try_from(bytes)?, "{device:?} has {} bytes", device.size()?);
    }
    Ok(())
}

fn both_kinds_grow_while_published(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, capability| {
        let csi = rig.csi()?;
        for (round, size) in [(0, 2 * SIZE), (1, 2 * SIZE), (2, 3 * SIZE)] {
            let capability = (round == 2).then(|| capability.clone());
            let request = NodeExpandVolumeRequest { volume_capability: capability, ..node_expand(id, target, size) };
            ensure!(csi.node_expand_volume(request)?.capacity_bytes == size);
            check_size(rig, id, target, size)?;
        }
        Ok(())
    })
}

fn the_controller_grows_both_kinds_wholly(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let answer = rig.csi()?.controller_expand_volume(controller_expand(id, 2 * SIZE))?;
        ensure!(answer.capacity_bytes == 2 * SIZE && !answer.node_expansion_required, "{answer:?}");
        check_size(rig, id, target, 2 * SIZE)?;
        // The kubelet makes its call regardless.
        ensure!(rig.csi()?.node_expand_volume(node_expand(id, target, 2 * SIZE))?.capacity_bytes == 2 * SIZE);
        check_size(rig, id, target, 2 * SIZE)
    })
}

fn the_required_size_is_answered_and_not_the_limit(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let request =
            NodeExpandVolumeRequest { capacity_range: between(SIZE + 1, 4 * SIZE), ..node_expand(id, target, 0) };
        ensure!(rig.csi()?.node_expand_volume(request)?.capacity_bytes == SIZE + 4096);
        check_size(rig, id, target, SIZE + 4096)
    })
}

fn a_smaller_size_is_answered_with_the_current_one(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let csi = rig.csi()?;
        for size in [1, SIZE - MIB, SIZE] {
            ensure!(csi.node_expand_volume(node_expand(id, target, size))?.capacity_bytes == SIZE);
            ensure!(csi.controller_expand_volume(controller_expand(id, size))?.capacity_bytes == SIZE);
        }
        check_size(rig, id, target, SIZE)
    })
}

fn without_a_range_the_current_size_is_answered(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let request = NodeExpandVolumeRequest { capacity_range: None, ..node_expand(id, target, 0) };
        ensure!(rig.csi()?.node_expand_volume(request)?.capacity_bytes == SIZE);
        check_size(rig, id, target, SIZE)
    })
}

fn impossible_ranges_are_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let csi = rig.csi()?;
        for (range, code) in [
            (between(-1, 0), Code::InvalidArgument),
            (between(2 * SIZE, SIZE), Code::InvalidArgument),
            (between(0, 0), Code::InvalidArgument),
            (between(0, SIZE / 2), Code::OutOfRange),
            (between(SIZE + 1, SIZE + 1), Code::OutOfRange),
            (at_least(i64::MAX), Code::OutOfRange),
        ] {
            let request = NodeExpandVolumeRequest { capacity_range: range, ..node_expand(id, target, 0) };
            refused(csi.node_expand_volume(request), code, "")?;
            let request = ControllerExpandVolumeRequest { capacity_range: range, ..controller_expand(id, 0) };
            refused(csi.controller_expand_volume(request), code, "")?;
        }
        check_size(rig, id, target, SIZE)
    })
}

fn what_is_not_there_is_not_found(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for id in ["vol-z", "No Id"] {
        refused(csi.node_expand_volume(node_expand(id, &rig.target("z"), SIZE)), Code::NotFound, "")?;
        refused(csi.controller_expand_volume(controller_expand(id, SIZE)), Code::NotFound, "")?;
    }
    with_volumes(rig, |rig, id, target, _| {
        for path in [rig.target("z"), "/etc".into(), "relative".into(), target.join("inner")] {
            refused(rig.csi()?.node_expand_volume(node_expand(id, &path, 2 * SIZE)), Code::NotFound, "")?;
        }
        check_size(rig, id, target, SIZE)
    })
}

fn missing_fields_are_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let csi = rig.csi()?;
        refused(csi.node_expand_volume(node_expand("", target, SIZE)), Code::InvalidArgument, "volume_id")?;
        refused(csi.node_expand_volume(node_expand(id, Path::new(""), SIZE)), Code::InvalidArgument, "volume_path")?;
        refused(csi.controller_expand_volume(controller_expand("", SIZE)), Code::InvalidArgument, "volume_id")?;
        let request = ControllerExpandVolumeRequest { capacity_range: None, ..controller_expand(id, 0) };
        refused(csi.controller_expand_volume(request), Code::InvalidArgument, "capacity_range")
    })
}

fn the_wrong_capability_is_refused(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, own| {
        let other = if own == mount() { block() } else { mount() };
        let request = NodeExpandVolumeRequest { volume_capability: Some(other), ..node_expand(id, target, 2 * SIZE) };
        refused(rig.csi()?.node_expand_volume(request), Code::InvalidArgument, id)?;
        check_size(rig, id, target, SIZE)
    })
}

fn more_than_the_pool_has_is_out_of_range_and_changes_nothing(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        let csi = rig.csi()?;
        refused(csi.node_expand_volume(node_expand(id, target, 1 << 40)), Code::OutOfRange, "pool")?;
        refused(csi.controller_expand_volume(controller_expand(id, 1 << 40)), Code::OutOfRange, "pool")?;
        check_size(rig, id, target, SIZE)
    })
}

fn growth_survives_restarts(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, _| {
        rig.csi()?.node_expand_volume(node_expand(id, target, 2 * SIZE))?;
        rig.restart_helper()?;
        check_size(rig, id, target, 2 * SIZE)?;
        rig.restart_frontend()?;
        check_size(rig, id, target, 2 * SIZE)
    })
}

fn a_device_grows_under_a_live_writer(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, target, capability| {
        if capability == mount() {
            let mut file = File::create(target.join("file"))?;
            for round in 1..4 {
                file.write_all(&[b'x'; 4096])?;
                rig.csi()?.node_expand_volume(node_expand(id, target, SIZE + round * MIB))?;
            }
            ensure!(file.metadata()?.len() == 3 * 4096);
            return Ok(());
        }
        let file = File::options().read(true).write(true).open(target)?;
        for round in 1..4 {
            let end = u64::try_from(SIZE + (round - 1) * MIB)?;
            ensure!(file.write_at(b"behind", end).is_err(), "written beyond the end");
            rig.csi()?.node_expand_volume(node_expand(id, target, SIZE + round * MIB))?;
            file.write_all_at(b"behind", end)?;
        }
        file.sync_all()?;
        Ok(())
    })
}

fn a_grown_volume_is_still_the_same_when_created_again(rig: &mut Rig) -> Result<()> {
    with_volumes(rig, |rig, id, _, capability| {
        let csi = rig.csi()?;
        csi.controller_expand_volume(controller_expand(id, 2 * SIZE))?;
        let volume = csi.create_volume(create(id, SIZE, capability))?.volume;
        ensure!(volume.is_some_and(|volume| volume.capacity_bytes == 2 * SIZE));
        Ok(())
    })
}
