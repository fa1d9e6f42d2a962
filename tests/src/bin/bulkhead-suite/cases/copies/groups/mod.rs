//! Snapshots of several volumes at one moment.

mod freezing;
mod taken;
mod unfinished;

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use bulkhead_tests::case::Case;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::listed;
use crate::cases::filesystems::{SIZE, end, make_pool};

/// All of them.
pub fn cases() -> Vec<Case> {
    [freezing::cases(), taken::cases(), unfinished::cases()].concat()
}

const BLOCK: u64 = 8 << 20;

fn start(rig: &mut Rig, ids: &[&str]) -> Result<HelperClient> {
    make_pool(rig, 6)?;
    let helper = rig.started_helper()?;
    for id in ids {
        helper.ask(&create(id, filesystem_spec(SIZE)))?;
        publish(&helper, id)?;
    }
    Ok(helper)
}

fn publish(helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask_all([mount_filesystem(id), bind(id, id)])
}

/// What an image says of its filesystem: whether a helper may have left it frozen.
fn mark(rig: &Rig, id: &str) -> Result<[u8; 1]> {
    let mut mark = [0; 1];
    rustix::fs::fgetxattr(File::open(rig.pool().image(id))?, "trusted.bulkhead.filesystem", &mut mark[..])?;
    Ok(mark)
}

/// Checks that each of these can be written to.
fn check_writable(rig: &Rig, ids: &[&str]) -> Result<()> {
    for id in ids {
        let file = File::create(rig.target(id).join("written"))?;
        file.write_all_at(id.as_bytes(), 0)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Checks that no snapshot is left, nor anything of one, and that no image says that its filesystem may be frozen.
fn check_nothing_left(rig: &Rig, ids: &[&str]) -> Result<()> {
    ensure!(listed(&rig.helper()?, None)?.is_empty(), "a snapshot is left");
    check_entries(rig, ids)?;
    for id in ids {
        ensure!(&mark(rig, id)? == b"1", "{id} may be frozen");
    }
    Ok(())
}

/// Checks that the pool has these, and nothing else, once what was deleted is gone.
fn check_entries(rig: &Rig, ids: &[&str]) -> Result<()> {
    rig.eventually(20, || {
        let (mut entries, mut wanted) = (rig.pool().entries()?, ids.to_vec());
        wanted.sort_unstable();
        entries.sort_unstable();
        ensure!(entries == wanted, "{entries:?}");
        Ok(())
    })
}
