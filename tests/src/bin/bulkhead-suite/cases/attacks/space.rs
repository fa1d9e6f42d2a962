//! Attacks by tenants on what the volumes of a pool share: space, inodes, project ids.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::attacker::retag;
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::expect::{denied, no_room};
use bulkhead_tests::helper::{self, directory_spec, image_spec};
use bulkhead_tests::observe::quotas;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;

cases! {
    discarded_blocks_are_not_promised_again: OwnPool,
    empty_files_in_other_projects_are_reported: Quota,
    a_tenant_that_takes_all_project_ids_is_reported: Bare + Quota,
    a_file_moved_into_a_deleted_volumes_project_is_reported: Long + Quota,
}

/// How long the helper relies on the space it measured.
const SPACE_LASTS: Duration = Duration::from_millis(1100);
/// How long a condition may take to be reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// Waits for a condition of the pool.
fn reported(rig: &Rig, limit: Duration, wanted: &Condition) -> Result<()> {
    let helper = rig.helper()?;
    wait::until(rig.patience(limit), || {
        helper.check_status("default", |status| status.conditions.as_slice().contains(wanted))
    })
}

/// A guest discards its device: the blocks of its image become free, but still belong to it.
fn discarded_blocks_are_not_promised_again(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 128 << 20;
    let (_, target) = rig.published(create("vol-a", SIZE.try_into()?, block()))?;
    std::thread::sleep(SPACE_LASTS);
    let before = rig.helper()?.pool_status("default")?;
    run(Command::new("blkdiscard").arg(&target))?;
    let occupied = fs::metadata(rig.pool().image("vol-a"))?.blocks() * 512;
    ensure!(occupied < SIZE / 4, "the image occupies {occupied} bytes after the discard");
    for restart in [false, true] {
        if restart {
            rig.restart_helper()?;
        }
        std::thread::sleep(SPACE_LASTS);
        let (helper, after) = (rig.helper()?, rig.helper()?.pool_status("default")?);
        ensure!(after.available < before.available + (8 << 20), "{before:?} became {after:?}");
        let beyond = (before.available + SIZE / 2) / 4096 * 4096;
        for spec in [image_spec(beyond), directory_spec(beyond)] {
            no_room(helper.request(&helper::create("vol-b", spec))?)?;
        }
    }
    rig.restart_frontend()
}

/// Files without content use up nobody's bytes, but inodes are limited as well.
fn empty_files_in_other_projects_are_reported(rig: &mut Rig) -> Result<()> {
    let (_, target) = rig.published(create("vol-a", 16 * MIB, mount()))?;
    for number in 0..20 {
        let file = target.join(number.to_string());
        File::create(&file)?;
        retag(&file, 114_711)?;
    }
    // It scans the projects once a minute, and soon after it has started.
    rig.restart_helper()?;
    let evasion = Condition::QuotaEvasion { bytes: 0, inodes: 20, first: 114_711, more: false };
    reported(rig, REPORTED_WITHIN, &evasion)?;
    Ok(())
}

/// A tenant has a file in each project of the range: no id is left for a new volume until the files are gone.
fn a_tenant_that_takes_all_project_ids_is_reported(rig: &mut Rig) -> Result<()> {
    rig.helper_flags = vec!["--project-ids".to_owned(), "7000-7059".to_owned()];
    rig.start()?;
    let (_, target) = rig.published(create("vol-a", 16 * MIB, mount()))?;
    for project in 7001..=7059 {
        let file = target.join(project.to_string());
        File::create(&file)?;
        retag(&file, project)?;
    }
    // It scans the projects once a minute, and soon after it has started.
    let helper = rig.restarted_helper()?;
    // A search that went on while a volume claims one of them would miss that one.
    let evasion = Condition::QuotaEvasion { bytes: 0, inodes: 59, first: 7001, more: false };
    reported(rig, REPORTED_WITHIN, &evasion)?;
    let create_another = helper::create("vol-b", directory_spec(16 << 20));
    denied(helper.request(&create_another)?, ErrorKind::NoSpace, "no free project id")?;
    // Its inodes are promised as well.
    let promised = helper.pool_status("default")?.promised;
    ensure!((16 << 20..20 << 20).contains(&promised), "{promised} bytes are promised");
    // One id is enough, whichever it is.
    fs::remove_file(target.join("7042"))?;
    rig.eventually(10, || helper.ask(&create_another).map(drop))?;
    let limited: Vec<u32> = quotas::inodes(&rig.pool().directory)?
        .iter()
        .filter(|quota| quota.limit > 0)
        .map(|quota| quota.project)
        .collect();
    ensure!(limited == [7000, 7042], "{limited:?}");
    Ok(())
}

/// A tenant moves a file of its own into a neighbour's project, and the neighbour is deleted.
fn a_file_moved_into_a_deleted_volumes_project_is_reported(rig: &mut Rig) -> Result<()> {
    let (csi, target) = (rig.csi()?, rig.target("b"));
    csi.create_volume(create("vol-a", 16 * MIB, mount()))?;
    let project = quotas::blocks(&rig.pool().directory)?.first().context("no project")?.project;
    csi.create_volume(create("vol-b", 16 * MIB, mount()))?;
    csi.node_publish_volume(publish("vol-b", &target, mount()))?;
    let file = target.join("file");
    fs::write(&file, "here to stay")?;
    retag(&file, project)?;
    let helper = rig.helper()?;
    let promised = helper.pool_status("default")?.promised;
    csi.delete_volume(delete("vol-a"))?;
    reported(rig, Duration::from_secs(90), &Condition::NotReleased { volumes: 1, project })?;
    let status = helper.pool_status("default")?;
    ensure!(status.emptying == 1 && status.promised == promised, "{status:?}, {promised} bytes before the deletion");
    fs::remove_file(&file)?;
    rig.eventually(40, || {
        helper.check_status("default", |status| status.emptying == 0 && status.conditions.as_slice().is_empty())
    })?;
    Ok(())
}
