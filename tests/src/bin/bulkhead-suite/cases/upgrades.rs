//! The programs of an earlier commit and today's, in every combination and every order, forth and back, while volumes
//! are in use.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::rig::Rig;

use super::owner::{NOTE, noted, set};

cases! {
    the_helper_is_upgraded_first_and_goes_back_last: Bare + Long + Host,
    the_frontend_is_upgraded_first_and_goes_back_last: Bare + Long + Host,
    a_helper_that_is_killed_is_followed_by_one_of_another_age: Bare + Long + Host,
}

/// Where the earlier programs are; `cargo xtask` sets it in a long run.
const FORMER: &str = "BULKHEAD_FORMER_DIR";

const SIZE: i64 = 16 * MIB;

/// What both volumes contain, at this offset.
const WRITTEN: &[u8] = b"written by a pod that noticed nothing";
const OFFSET: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Former,
    Today,
}

use Age::{Former, Today};

#[derive(Clone, Copy, Debug)]
enum End {
    Orderly,
    Killed,
}

/// A pod's open file and device, which stay open through all changes.
struct Pod {
    file: File,
    device: File,
}

impl Pod {
    fn check(&self) -> Result<()> {
        for (open, what) in [(&self.file, "directory"), (&self.device, "block")] {
            let mut found = vec![0; WRITTEN.len()];
            open.read_exact_at(&mut found, OFFSET).with_context(|| format!("read the {what} volume"))?;
            ensure!(found == WRITTEN, "the {what} volume has {found:?}");
            open.write_all_at(WRITTEN, OFFSET)?;
            open.sync_all()?;
        }
        Ok(())
    }
}

fn the_helper_is_upgraded_first_and_goes_back_last(rig: &mut Rig) -> Result<()> {
    let order = [(Former, Former), (Today, Former), (Today, Today), (Today, Former), (Former, Former)];
    live_through(rig, &order, End::Orderly)
}

fn the_frontend_is_upgraded_first_and_goes_back_last(rig: &mut Rig) -> Result<()> {
    let order = [(Former, Former), (Former, Today), (Today, Today), (Former, Today), (Former, Former)];
    live_through(rig, &order, End::Orderly)
}

fn a_helper_that_is_killed_is_followed_by_one_of_another_age(rig: &mut Rig) -> Result<()> {
    let order = [(Former, Former), (Today, Today), (Former, Today), (Today, Former), (Former, Former), (Today, Today)];
    live_through(rig, &order, End::Killed)
}

/// Goes through the combinations of helper and frontend; in each one, the volumes are used in every way.
fn live_through(rig: &mut Rig, order: &[(Age, Age)], end: End) -> Result<()> {
    let former = std::env::var_os(FORMER).map(PathBuf::from);
    let former = former.with_context(|| format!("${FORMER} is not set: cargo xtask test --all sets it"))?;
    let mut pod = None;
    let mut before = None;
    for (round, (helper, frontend)) in order.iter().copied().enumerate() {
        let place = |age| (age == Former).then(|| former.clone());
        (rig.helper_from, rig.frontend_from) = (place(helper), place(frontend));
        change(rig, before, (helper, frontend), end)?;
        let used = use_volumes(rig, round, &mut pod);
        let is_noted = order[..round].iter().any(|(helper, _)| *helper == Today);
        let noted = || if helper == Today { note(rig, round, is_noted) } else { Ok(()) };
        used.and_then(|()| noted())
            .with_context(|| format!("round {round}: helper {helper:?}, frontend {frontend:?}"))?;
        before = Some((helper, frontend));
    }
    remove(rig, order.len(), pod)
}

/// Starts anew only what is of another age.
fn change(rig: &mut Rig, before: Option<(Age, Age)>, now: (Age, Age), end: End) -> Result<()> {
    let Some(before) = before else { return rig.start() };
    if before.0 != now.0 {
        match end {
            End::Orderly => rig.stop_helper()?,
            End::Killed => rig.kill_helper()?,
        }
        rig.start_helper()?;
    }
    if before.1 != now.1 {
        rig.restart_frontend()?;
    }
    rig.await_frontend()
}

/// Every call, on volumes that were made in the first round, in the one before, and in this one.
fn use_volumes(rig: &mut Rig, round: usize, pod: &mut Option<Pod>) -> Result<()> {
    let csi = rig.csi()?;
    let kinds = [("vol-a", mount()), ("vol-b", block())];
    match pod {
        None => {
            for (id, capability) in kinds.clone() {
                csi.create_volume(create(id, SIZE, capability.clone()))?;
                csi.node_publish_volume(publish(id, &rig.target(id), capability))?;
            }
            let options = || File::options().read(true).write(true).clone();
            let file = options().create(true).truncate(true).open(rig.target("vol-a").join("file"))?;
            let open = Pod { file, device: options().open(rig.target("vol-b"))? };
            open.file.write_all_at(WRITTEN, OFFSET)?;
            open.device.write_all_at(WRITTEN, OFFSET)?;
            *pod = Some(open);
        }
        Some(pod) => pod.check()?,
    }
    for (id, capability) in kinds {
        let (held, other) = (rig.target(id), rig.target("other"));
        // Repeated calls, and a second target.
        csi.node_publish_volume(publish(id, &held, capability.clone()))?;
        csi.node_publish_volume(publish(id, &other, capability.clone()))?;
        let size = SIZE + MIB * i64::try_from(round)?;
        csi.controller_expand_volume(controller_expand(id, size))?;
        csi.node_expand_volume(node_expand(id, &held, size))?;
        let total = csi.node_get_volume_stats(stats(id, &held))?.usage[0].total;
        ensure!(total == size, "{id} has {total} bytes instead of {size}");
        csi.node_unpublish_volume(unpublish(id, &other))?;
        // One volume is left to the programs of the next round, which delete it.
        let (here, there) = (format!("{id}-{round}"), round.checked_sub(1).map(|last| format!("{id}-{last}")));
        csi.create_volume(create(&here, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(&here, &rig.target(&here), capability.clone()))?;
        if let Some(there) = there {
            csi.node_publish_volume(publish(&there, &other, capability))?;
            csi.node_unpublish_volume(unpublish(&there, &other))?;
            end_volume(rig, &there)?;
        }
    }
    let log = rig.running_helper()?.own_log()?;
    let refused = log.lines().find(|line| line.contains("a connection is closed"));
    ensure!(refused.is_none(), "the helper does not understand the frontend: {refused:?}");
    Ok(())
}

/// Notes whose the volumes are, which an earlier helper cannot. What one of today has noted before is still there.
fn note(rig: &Rig, round: usize, is_noted: bool) -> Result<()> {
    for id in ["vol-a", "vol-b"] {
        let before = noted(rig, id)?.0;
        ensure!(before.as_deref() == is_noted.then_some(NOTE), "the note on {id} is {before:?}");
        for volume in [id, &format!("{id}-{round}")] {
            rig.helper()?.ask(&set(volume, NOTE))?;
            ensure!(noted(rig, volume)?.0.as_deref() == Some(NOTE), "nothing is noted on {volume}");
        }
    }
    Ok(())
}

fn end_volume(rig: &Rig, id: &str) -> Result<()> {
    let csi = rig.csi()?;
    csi.node_unpublish_volume(unpublish(id, &rig.target(id)))?;
    csi.delete_volume(delete(id))?;
    ensure!(!exists(&rig.target(id)), "the target of {id} is left");
    Ok(())
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn remove(rig: &Rig, rounds: usize, pod: Option<Pod>) -> Result<()> {
    pod.context("no round was run")?.check()?;
    for id in ["vol-a", "vol-b"] {
        end_volume(rig, &format!("{id}-{}", rounds - 1))?;
        end_volume(rig, id)?;
    }
    Ok(())
}
