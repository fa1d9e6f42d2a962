//! Snapshots, and volumes that begin as copies.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{Origin, Range, Reply, Request, Snapshot};
use bulkhead_tests::case::Case;
use bulkhead_tests::helper::{HelperClient, attach, delete, detach, make_device, remove_device, volume};
use bulkhead_tests::rig::Rig;

mod crowd;
mod delta;
pub mod dying;
mod filesystems;
mod flood;
mod frozen;
mod groups;
mod kinds;
mod life;
mod model;
mod one_filesystem;
mod order;
pub mod promises;
mod room;
mod scale;
mod sharing;
mod unlinked;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        crowd::cases(),
        delta::cases(),
        dying::cases(),
        filesystems::cases(),
        flood::cases(),
        frozen::cases(),
        groups::cases(),
        kinds::cases(),
        life::cases(),
        model::cases(),
        one_filesystem::cases(),
        order::cases(),
        promises::cases(),
        room::cases(),
        scale::cases(),
        sharing::cases(),
        unlinked::cases(),
    ]
    .concat()
}

/// Starts a helper with one pool.
fn start(rig: &mut Rig) -> Result<HelperClient> {
    rig.started_helper()
}

/// Publishes a block volume at the target of its name.
fn publish(helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask(&attach(id))?;
    helper.ask(&make_device(id, id)).map(drop)
}

/// Unpublishes and deletes it.
fn end(helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask_all([remove_device(id, id), detach(id), delete(id)])
}

/// Asks for a snapshot that is made or found.
fn take(helper: &HelperClient, of: &str, id: &str) -> Result<Snapshot> {
    match helper.ask(&bulkhead_tests::helper::create_snapshot(of, id))? {
        Reply::Snapshot(snapshot) => Ok(snapshot),
        other => bail!("no snapshot: {other:?}"),
    }
}

/// All snapshots, or those of one volume, read in pages of two.
pub fn listed(helper: &HelperClient, of: Option<&str>) -> Result<Vec<Snapshot>> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let request = Request::ListSnapshots { after, of: of.map(volume), limit: 2 };
        let Reply::Snapshots(page) = helper.ask(&request)? else { bail!("no page of snapshots") };
        let Some(last) = page.as_slice().last() else { return Ok(all) };
        after = Some(last.snapshot.clone());
        all.extend(page.into_vec());
    }
}

/// Returns where a volume comes from.
fn origin(helper: &HelperClient, id: &str) -> Result<Option<Origin>> {
    match helper.ask(&Request::Origin { volume: volume(id) })? {
        Reply::Origin(origin) => Ok(origin),
        other => bail!("no origin: {other:?}"),
    }
}

/// All ranges that differ, or hold data.
fn ranges(helper: &HelperClient, snapshot: &str, base: Option<&str>) -> Result<Vec<Range>> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let request = Request::Delta { snapshot: volume(snapshot), base: base.map(volume), from };
        let Reply::Ranges { ranges, next: after } = helper.ask(&request)? else { bail!("no ranges") };
        ensure!(after.is_none_or(|after| after > from), "{after:?} after {from}");
        all.extend(ranges.into_vec());
        next = after;
    }
    Ok(all)
}

/// Returns how many bytes a file takes up, those that it shares included.
fn allocated(file: &Path) -> Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

/// Fills part of a device or a file with one byte, and has it written to disk.
fn fill(path: &Path, byte: u8, offset: u64, length: u64) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    let block = vec![byte; usize::try_from(length)?];
    file.write_all_at(&block, offset)?;
    Ok(file.sync_all()?)
}

/// Checks that part of a device or a file holds nothing but one byte.
fn check_filled(path: &Path, byte: u8, offset: u64, length: u64) -> Result<()> {
    let mut found = vec![!byte; usize::try_from(length)?];
    File::open(path)?.read_exact_at(&mut found, offset)?;
    let other = found.iter().position(|found| *found != byte);
    ensure!(other.is_none(), "{}: byte {other:?} is not {byte}", path.display());
    Ok(())
}

/// Waits until nothing is left of what was deleted.
fn gone(rig: &Rig) -> Result<()> {
    rig.eventually(20, || {
        for pool in &rig.pools {
            let status = rig.helper()?.pool_status(&pool.name)?;
            ensure!(status.emptying == 0, "{status:?}");
        }
        Ok(())
    })
}
