//! Statistics and health.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::volume_usage::Unit;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    a_directory_volume_has_bytes_and_inodes,
    a_block_volume_has_its_size_at_the_target_and_at_the_global_map_path,
    condition_is_always_told: Filesystem,
    what_is_not_there_is_not_found,
    another_volumes_path_is_not_found,
    missing_fields_are_refused,
    a_device_that_is_not_ours_is_not_found,
    use_is_counted: Quota,
    available_is_never_negative: Quota,
    a_pool_without_quotas_says_so: Bare + Filesystem,
}

const SIZE: i64 = 16 * MIB;

fn usage_of(answer: &NodeGetVolumeStatsResponse, unit: Unit) -> Result<VolumeUsage> {
    let mut found = answer.usage.iter().filter(|usage| usage.unit() == unit);
    let usage = found.next().with_context(|| format!("no {unit:?} in {answer:?}"))?;
    ensure!(found.next().is_none() && usage.total > 0 && usage.used >= 0 && usage.available >= 0, "{answer:?}");
    Ok(*usage)
}

fn a_directory_volume_has_bytes_and_inodes(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    let answer = csi.node_get_volume_stats(stats("vol-a", &target))?;
    ensure!(usage_of(&answer, Unit::Bytes)?.total == SIZE, "{answer:?}");
    // One per 16 KiB, but never fewer than 1,024.
    ensure!(usage_of(&answer, Unit::Inodes)?.total == 1024, "{answer:?}");
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    refused(csi.node_get_volume_stats(stats("vol-a", &target)), Code::NotFound, "vol-a")
}

fn a_block_volume_has_its_size_at_the_target_and_at_the_global_map_path(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, block()))?;
    let target = rig.kubelet.prepare_block("vol-a", "pv-a", "pod-1")?;
    csi.node_publish_volume(publish("vol-a", &target, block()))?;
    let global = rig.kubelet.map_globally(&target, "pv-a", "pod-1")?;
    for path in [&target, &global] {
        let answer = csi.node_get_volume_stats(stats("vol-a", path))?;
        ensure!(usage_of(&answer, Unit::Bytes)?.total == SIZE && answer.usage.len() == 1, "{answer:?}");
    }
    rig.kubelet.unmap_globally(&global)?;
    refused(csi.node_get_volume_stats(stats("vol-a", &global)), Code::NotFound, "vol-a")
}

fn condition_is_always_told(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let target = rig.target(id);
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &target, capability))?;
        let condition = csi.node_get_volume_stats(stats(id, &target))?.volume_condition.context("no condition")?;
        ensure!(!condition.message.is_empty(), "{condition:?}");
        ensure!(!condition.abnormal, "{condition:?}");
    }
    Ok(())
}

fn what_is_not_there_is_not_found(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    for (id, path) in [
        ("vol-z", target.clone()),
        ("No Id", target.clone()),
        ("vol-a", rig.target("z")),
        ("vol-a", rig.target("z/y/x")),
        ("vol-a", target.join("inner")),
        ("vol-a", "/".into()),
        ("vol-a", "/etc".into()),
        ("vol-a", "relative".into()),
        ("vol-a", target.join("../a")),
    ] {
        let answer = csi.node_get_volume_stats(stats(id, &path));
        refused(answer, Code::NotFound, "").with_context(|| format!("{id} at {}", path.display()))?;
    }
    Ok(())
}

fn another_volumes_path_is_not_found(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [("vol-a", mount()), ("vol-b", block()), ("vol-c", block())] {
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &rig.target(id), capability))?;
    }
    for (id, at) in [("vol-a", "vol-b"), ("vol-b", "vol-a"), ("vol-b", "vol-c")] {
        refused(csi.node_get_volume_stats(stats(id, &rig.target(at))), Code::NotFound, id)?;
    }
    Ok(())
}

fn missing_fields_are_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    refused(csi.node_get_volume_stats(stats("", &rig.target("a"))), Code::InvalidArgument, "volume_id")?;
    refused(csi.node_get_volume_stats(stats("vol-a", Path::new(""))), Code::InvalidArgument, "volume_path")
}

fn a_device_that_is_not_ours_is_not_found(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    csi.create_volume(create("vol-a", SIZE, block()))?;
    std::fs::File::create(&target)?;
    rustix::mount::mount_bind("/dev/null", &target)?;
    refused(csi.node_get_volume_stats(stats("vol-a", &target)), Code::NotFound, "vol-a")?;
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::NOFOLLOW)?;
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    std::fs::remove_file(&target)?;
    Ok(())
}

fn use_is_counted(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    let before = csi.node_get_volume_stats(stats("vol-a", &target))?;
    std::fs::write(target.join("file"), vec![1; 4 << 20])?;
    std::fs::File::open(target.join("file"))?.sync_all()?;
    let after = csi.node_get_volume_stats(stats("vol-a", &target))?;
    let (empty, filled) = (usage_of(&before, Unit::Bytes)?, usage_of(&after, Unit::Bytes)?);
    let grown = filled.used - empty.used;
    ensure!((4 * MIB..=5 * MIB).contains(&grown), "{grown}: {before:?} {after:?}");
    ensure!(filled.used + filled.available == filled.total, "{filled:?}");
    let (empty, filled) = (usage_of(&before, Unit::Inodes)?, usage_of(&after, Unit::Inodes)?);
    ensure!(filled.used == empty.used + 1 && filled.used + filled.available == filled.total, "{empty:?} {filled:?}");
    Ok(())
}

fn available_is_never_negative(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    std::fs::write(target.join("file"), vec![1; 8 << 20])?;
    std::fs::File::open(target.join("file"))?.sync_all()?;
    // An operator reduces the space without the driver's knowledge.
    let project = bulkhead_tests::observe::quotas::blocks(&rig.pool().directory)?;
    let limit = format!("limit -p bhard=1m {}", project.first().context("no project")?.project);
    bulkhead_tests::pool::run(
        std::process::Command::new("xfs_quota").args(["-f", "-x", "-c", &limit]).arg(&rig.pool().directory),
    )?;
    let answer = csi.node_get_volume_stats(stats("vol-a", &target))?;
    let bytes = usage_of(&answer, Unit::Bytes)?;
    ensure!(bytes.total == SIZE && bytes.used >= 8 * MIB && bytes.available >= 0, "{bytes:?}");
    Ok(())
}

fn a_pool_without_quotas_says_so(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.pools[0].options = ",quota=none".to_owned();
    rig.start()?;
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    let answer = csi.node_get_volume_stats(stats("vol-a", &target))?;
    let bytes = usage_of(&answer, Unit::Bytes)?;
    ensure!((bytes.total, bytes.used, bytes.available) == (SIZE, 0, 0), "{bytes:?}");
    let condition = answer.volume_condition.context("no condition")?;
    ensure!(condition.message.contains("not enforced") && !condition.abnormal, "{condition:?}");
    Ok(())
}
