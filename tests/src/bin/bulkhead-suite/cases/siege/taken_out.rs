//! A pool is taken out of the configuration while its volumes are in use: the helper does not know them any more, and
//! says of none that it is unpublished, detached or deleted.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Response};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{Pool, mount_anew};
use bulkhead_tests::rig::Rig;
use rustix::mount::{UnmountFlags, unmount};

cases! {
    a_volume_of_a_pool_taken_out_is_not_said_to_be_unpublished: Bare,
    a_mounted_volume_of_a_pool_taken_out_is_not_said_to_be_deleted: Bare,
    an_attached_volume_of_a_pool_taken_out_is_not_said_to_be_deleted: Bare,
    a_volume_in_use_of_a_pool_without_its_disk_is_not_made_in_another: Bare,
}

const SIZE: u64 = 1 << 20;
/// Like that of no other test: a device has the volume's id as its label, and every helper of this kernel reads that.
const OLD_B: &str = "old-b-of-the-siege";

/// Checks that nothing was done, because of what is in use.
fn kept(answer: Response) -> Result<()> {
    match answer {
        Err(error) if matches!(error.kind, ErrorKind::InUse | ErrorKind::PoolBroken) => Ok(()),
        other => anyhow::bail!("answered {other:?}"),
    }
}

/// Publishes vol-a and vol-b from a pool called old, and starts a helper without that pool, which is returned.
fn take_out(rig: &mut Rig) -> Result<Pool> {
    rig.add_pools(["default", "old"])?;
    let helper = rig.started_helper()?;
    for (id, spec) in [(own("vol-a"), directory_spec(SIZE)), (OLD_B, image_spec(SIZE))] {
        helper.ask(&create_in("old", id, spec))?;
    }
    helper.ask_all([bind(own("vol-a"), "a"), attach(OLD_B), make_device(OLD_B, "b")])?;
    fs::write(rig.target("a/file"), "content")?;
    let old = rig.pools.pop().context("a pool")?;
    rig.restart_helper()?;
    Ok(old)
}

fn check_in_use(rig: &Rig, old: &Pool) -> Result<()> {
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    ensure!(mounts::at(&rig.target("b"))?.len() == 1, "the device is unpublished");
    ensure!(loops::backed_by(&old.device()?)?.len() == 1, "the device is detached");
    old.holds(&["old-b-of-the-siege", own("vol-a")])
}

/// Puts the pool back.
fn put_back(rig: &mut Rig, old: Pool) -> Result<()> {
    rig.pools.push(old);
    rig.restart_helper()
}

fn a_volume_of_a_pool_taken_out_is_not_said_to_be_unpublished(rig: &mut Rig) -> Result<()> {
    let old = take_out(rig)?;
    for _ in 0..2 {
        let helper = rig.helper()?;
        for request in [unbind(own("vol-a"), "a"), remove_device(OLD_B, "b"), detach(OLD_B)] {
            kept(helper.request(&request)?).with_context(|| format!("{request:?}"))?;
        }
        check_in_use(rig, &old)?;
        rig.restart_helper()?;
    }
    // The way out, by hand.
    let helper = rig.helper()?;
    for name in ["a", "b"] {
        unmount(rig.target(name), UnmountFlags::NOFOLLOW)?;
    }
    helper.ask_all([unbind(own("vol-a"), "a"), remove_device(OLD_B, "b")])?;
    kept(helper.request(&detach(OLD_B))?).context("detach what is unpublished")?;
    loops::backed_by(&old.device()?)?.iter().try_for_each(loops::detach_by_hand)?;
    rig.eventually(3, || helper.ask(&detach(OLD_B)).map(drop))?;
    for name in ["a", "b"] {
        let path = rig.target(name);
        if path.is_dir() {
            fs::remove_dir(path)?
        } else if path.exists() {
            fs::remove_file(path)?
        }
    }
    put_back(rig, old)
}

fn a_mounted_volume_of_a_pool_taken_out_is_not_said_to_be_deleted(rig: &mut Rig) -> Result<()> {
    let old = take_out(rig)?;
    let helper = rig.helper()?;
    let answers = [delete(own("vol-a")), discard(own("vol-a"))].map(|one| helper.request(&one));
    check_in_use(rig, &old)?;
    put_back(rig, old)?;
    answers.into_iter().try_for_each(|answer| kept(answer?))
}

fn an_attached_volume_of_a_pool_taken_out_is_not_said_to_be_deleted(rig: &mut Rig) -> Result<()> {
    let old = take_out(rig)?;
    let helper = rig.helper()?;
    let answers = [delete(OLD_B), discard(OLD_B)].map(|one| helper.request(&one));
    check_in_use(rig, &old)?;
    put_back(rig, old)?;
    answers.into_iter().try_for_each(|answer| kept(answer?))
}

/// Of two volumes with one id, neither could be unpublished.
fn a_volume_in_use_of_a_pool_without_its_disk_is_not_made_in_another(rig: &mut Rig) -> Result<()> {
    let old = take_out(rig)?;
    let directory = old.directory.clone();
    // Its disk is missing, and it is still configured.
    rig.kill_helper()?;
    rig.pools.push(old);
    unmount(&directory, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
    let helper = rig.started_helper()?;
    for (id, spec) in [(own("vol-a"), directory_spec(SIZE)), (OLD_B, image_spec(SIZE))] {
        for _ in 0..2 {
            denied(helper.request(&create(id, spec))?, ErrorKind::PoolBroken, "may be in pool old")?;
        }
    }
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    // The other pool serves whatever is not seen.
    helper.ask_all([create(own("vol-x"), directory_spec(SIZE)), delete(own("vol-x"))])?;
    rig.kill_helper()?;
    mount_anew(&rig.run_options, &directory)?;
    let helper = rig.started_helper()?;
    helper.ask_all([
        unbind(own("vol-a"), "a"),
        remove_device(OLD_B, "b"),
        detach(OLD_B),
        delete(own("vol-a")),
        delete(OLD_B),
    ])
}
