//! The directories of two volumes are exchanged in the pool while they are served: neither is published as the other.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::rig::Rig;
use rustix::fs::{CWD, RenameFlags, renameat_with};

cases! {
    exchanged_directories_are_not_published: Filesystem,
    exchanged_images_are_not_attached: Filesystem,
    exchanged_directories_in_use_are_not_deleted,
}

const SIZE: u64 = 1 << 20;

fn exchange(rig: &Rig) -> Result<()> {
    let [one, other] = ["vol-a", "vol-b"].map(|id| rig.pool().volume(id));
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

fn exchanged_directories_are_not_published(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&create(id, directory_spec(SIZE)))?;
        fs::write(rig.pool().volume(id).join("data/file"), id)?;
    }
    for _ in 0..2 {
        exchange(rig)?;
        for id in ["vol-a", "vol-b"] {
            denied(helper.request(&bind(id, "t"))?, ErrorKind::PoolBroken, "was replaced")?;
            ensure!(mounts::below(&rig.publish_directory())?.is_empty(), "something is published");
            ensure!(!rig.target("t").exists(), "the target is left");
        }
        exchange(rig)?;
        for id in ["vol-a", "vol-b"] {
            helper.ask(&bind(id, id))?;
            ensure!(fs::read(rig.target(id).join("file"))? == id.as_bytes());
            helper.ask(&unbind(id, id))?;
        }
    }
    // One that is not there at all.
    fs::rename(rig.pool().volume("vol-a"), rig.pool().directory.join("Aside"))?;
    ensure!(helper.request(&bind("vol-a", "t"))?.is_err());
    ensure!(!rig.target("t").exists(), "the target is left");
    fs::rename(rig.pool().directory.join("Aside"), rig.pool().volume("vol-a"))?;
    Ok(())
}

fn exchanged_images_are_not_attached(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&create(id, image_spec(SIZE)))?;
        let image = rig.pool().image(id);
        fs::File::options().write(true).open(image)?.write_all_at(id.as_bytes(), 0)?;
    }
    exchange(rig)?;
    for id in ["vol-a", "vol-b"] {
        denied(helper.request(&attach(id))?, ErrorKind::PoolBroken, "was replaced")?;
        let grow = Request::GrowImage { volume: volume(id), size: bytes(2 * SIZE) };
        denied(helper.request(&grow)?, ErrorKind::PoolBroken, "was replaced")?;
        ensure!(fs::metadata(rig.pool().image(id))?.len() == SIZE);
    }
    ensure!(loops::backed_by(&rig.pool().device()?)?.is_empty(), "something is attached");
    exchange(rig)?;
    for id in ["vol-a", "vol-b"] {
        helper.ask_all([attach(id), make_device(id, id)])?;
        let found: [u8; 5] = bulkhead_tests::attacker::first_bytes(&rig.target(id))?;
        ensure!(found == id.as_bytes(), "{id} shows {found:?}");
    }
    Ok(())
}

/// While vol-b is published, neither name leads to the deletion of its content.
fn exchanged_directories_in_use_are_not_deleted(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all(["vol-a", "vol-b"].map(|id| create(id, directory_spec(SIZE))))?;
    helper.ask(&bind("vol-b", "b"))?;
    fs::write(rig.target("b/file"), "content")?;
    exchange(rig)?;
    for id in ["vol-a", "vol-b"] {
        // What is seen first depends on whether the whole mount table was read since.
        let refused = helper.request(&delete(id))?.err().map(|error| error.kind);
        ensure!(matches!(refused, Some(ErrorKind::InUse | ErrorKind::PoolBroken)), "{id}: {refused:?}");
        ensure!(fs::read(rig.target("b/file"))? == b"content");
    }
    // It is unpublished all the same: what is mounted there is what was mounted.
    exchange(rig)?;
    helper.ask(&unbind("vol-b", "b")).map(drop)
}
