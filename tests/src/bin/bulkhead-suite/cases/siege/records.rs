//! Volumes that were restored without their records (`rsync` without `-X`): they are not served, but nothing that is
//! mounted or attached of them is touched.

use std::fs::{self};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::another_helper::AnotherHelper;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{Pool, RECORD};
use bulkhead_tests::rig::Rig;
use rustix::fs::{XattrFlags, fremovexattr, fsetxattr};

cases! {
    volumes_without_records_stay_mounted_and_are_not_deleted: Bare,
    a_damaged_record_is_no_record: Bare,
    a_start_leaves_everything_mounted_that_is_not_its_own: Bare,
}

const SIZE: u64 = 1 << 20;

/// Publishes a directory volume and a block volume.
fn publish(helper: &HelperClient, directory: &str, block: &str) -> Result<()> {
    helper.ask_all([bind(directory, directory), attach(block), make_device(block, block)])
}

fn unpublish(helper: &HelperClient, directory: &str, block: &str) -> Result<()> {
    helper.ask_all([unbind(directory, directory), remove_device(block, block), detach(block)])?;
    helper.ask_all([delete(directory), delete(block)])
}

/// Checks that vol-a and vol-b are in use and not served.
fn check_not_served(rig: &Rig, why: &str) -> Result<()> {
    let helper = rig.helper()?;
    for request in [
        unbind(own("vol-a"), own("vol-a")),
        remove_device(own("vol-b"), own("vol-b")),
        detach(own("vol-b")),
        delete(own("vol-a")),
        delete(own("vol-b")),
        discard(own("vol-a")),
        create(own("vol-a"), directory_spec(SIZE)),
        create(own("vol-b"), image_spec(SIZE)),
        bind(own("vol-a"), "other"),
        attach(own("vol-b")),
    ] {
        denied(helper.request(&request)?, ErrorKind::PoolBroken, why).with_context(|| format!("{request:?}"))?;
    }
    let not_served = Condition::NotServed { volumes: 2 };
    helper.check_status("default", |status| status.conditions.as_slice().contains(&not_served))?;
    // Without quotas, only the image says how large its volume is.
    helper.check_status("default", |status| status.promised >= SIZE)?;
    rig.pool().holds(&[own("vol-a"), own("vol-b")])?;
    ensure!(fs::read(rig.target(own("vol-a")).join("file"))? == b"content");
    ensure!(mounts::at(&rig.target(own("vol-b")))?.len() == 1, "the device is unpublished");
    ensure!(loops::backed_by(&rig.pool().device()?)?.len() == 1, "the device is gone");
    Ok(())
}

fn begin(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), create(own("vol-b"), image_spec(SIZE))])?;
    publish(&helper, own("vol-a"), own("vol-b"))?;
    Ok(fs::write(rig.target(own("vol-a")).join("file"), "content")?)
}

fn volumes_without_records_stay_mounted_and_are_not_deleted(rig: &mut Rig) -> Result<()> {
    begin(rig)?;
    rig.kill_helper()?;
    let records = [rig.pool().record(own("vol-a"))?, rig.pool().record(own("vol-b"))?];
    for (outer, _) in &records {
        fremovexattr(outer, RECORD)?;
    }
    for _ in 0..2 {
        rig.start_helper()?;
        check_not_served(rig, "record")?;
        rig.kill_helper()?;
    }
    for (outer, record) in &records {
        fsetxattr(outer, RECORD, record, XattrFlags::CREATE)?;
    }
    rig.start_helper()?;
    unpublish(&rig.helper()?, own("vol-a"), own("vol-b"))
}

fn a_damaged_record_is_no_record(rig: &mut Rig) -> Result<()> {
    begin(rig)?;
    rig.kill_helper()?;
    let records = [rig.pool().record(own("vol-a"))?, rig.pool().record(own("vol-b"))?];
    let cut = |record: &[u8]| record[..record.len() / 2].to_vec();
    let longer = |record: &[u8]| [record, &[0; 8]].concat();
    let later = |record: &[u8]| [&[9], &record[1..]].concat();
    for damage in [cut, longer, later, |_: &[u8]| vec![2; 256], |_: &[u8]| Vec::new()] {
        for (outer, record) in &records {
            fsetxattr(outer, RECORD, &damage(record), XattrFlags::REPLACE)?;
        }
        rig.start_helper()?;
        check_not_served(rig, "record")?;
        rig.kill_helper()?;
    }
    for (outer, record) in &records {
        fsetxattr(outer, RECORD, record, XattrFlags::REPLACE)?;
    }
    rig.start_helper()?;
    unpublish(&rig.helper()?, own("vol-a"), own("vol-b"))
}

/// Beside the volumes that it serves there are those of another helper, those of a pool that is no longer configured,
/// and those without a record.
fn a_start_leaves_everything_mounted_that_is_not_its_own(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "old"])?;
    rig.start()?;
    let other = AnotherHelper::start(rig)?;
    let helper = rig.helper()?;
    let make = |helper: &HelperClient, pool: &str, names: [&str; 2]| -> Result<()> {
        for (id, spec) in names.into_iter().zip([directory_spec(SIZE), image_spec(SIZE)]) {
            helper.ask(&create_in(pool, id, spec))?;
        }
        publish(helper, names[0], names[1])
    };
    let [served, old, bare, theirs] =
        [[own("vol-a"), own("vol-b")], ["old-a", "old-b"], ["bare-a", "bare-b"], ["their-a", "their-b"]];
    make(&helper, "default", served)?;
    make(&helper, "default", bare)?;
    make(&helper, "old", old)?;
    make(&other.client()?, "other", theirs)?;
    let pools = [rig.pools.as_slice(), std::slice::from_ref(&other.pool)].concat();
    let before = seen(rig, &pools)?;
    ensure!((before.0.len(), before.1.len()) == (8, 4), "{before:?}");
    let old_pool = rig.pools[1].clone();
    rig.kill_helper()?;
    let records = [rig.pool().record(bare[0])?, rig.pool().record(bare[1])?];
    for (outer, _) in &records {
        fremovexattr(outer, RECORD)?;
    }
    rig.pools.truncate(1);
    for _ in 0..3 {
        rig.start_helper()?;
        check_same(&before, &seen(rig, &pools)?)?;
        rig.kill_helper()?;
    }
    for (outer, record) in &records {
        fsetxattr(outer, RECORD, record, XattrFlags::CREATE)?;
    }
    rig.pools.push(old_pool);
    rig.start_helper()?;
    check_same(&before, &seen(rig, &pools)?)?;
    let helper = rig.helper()?;
    for names in [served, old, bare] {
        unpublish(&helper, names[0], names[1])?;
    }
    unpublish(&other.client()?, theirs[0], theirs[1])?;
    rig.eventually(10, || other.pool.holds(&[]))?;
    other.stop()
}

type Seen = (Vec<mounts::Mount>, Vec<loops::Loop>);

fn check_same((mounted, attached): &Seen, (now_mounted, now_attached): &Seen) -> Result<()> {
    for mount in mounted {
        ensure!(now_mounted.contains(mount), "it was unmounted, or has changed: {mount:?} {now_mounted:?}");
    }
    for device in attached {
        // The name of its backing file was one in the jail of the helper that has attached it.
        let is_there = |now: &loops::Loop| {
            (&now.path, now.backing_inode, &now.backing_device, now.autoclear)
                == (&device.path, device.backing_inode, &device.backing_device, device.autoclear)
        };
        ensure!(now_attached.iter().any(is_there), "it was detached, or has changed: {device:?} {now_attached:?}");
    }
    let lengths = (mounted.len(), attached.len());
    ensure!((now_mounted.len(), now_attached.len()) == lengths, "there is more: {now_mounted:?} {now_attached:?}");
    Ok(())
}

/// Returns what is mounted in the publish directory, and attached of these pools.
fn seen(rig: &Rig, pools: &[Pool]) -> Result<Seen> {
    let devices = pools.iter().map(|pool| loops::backed_by(&pool.device()?)).collect::<Result<Vec<_>>>()?;
    Ok((mounts::below(&rig.publish_directory())?, devices.concat()))
}
