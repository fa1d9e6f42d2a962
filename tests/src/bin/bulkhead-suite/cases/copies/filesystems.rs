//! Snapshots and copies of volumes with filesystems of their own.

use std::fs;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Bytes, ErrorKind, Reply};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::sharing::sharing;
use super::{listed, take};
use crate::cases::filesystems::{SIZE, check_detached, check_image, helper_flags, make_pool};

cases! {
    a_filesystem_is_restored_as_it_was: Bare + Xfs,
    a_snapshot_of_a_filesystem_in_use_is_whole: Bare + Xfs,
    a_frozen_filesystem_holds_up_nobody_else: Bare + Xfs,
    a_copy_counts_as_a_filesystem: Bare + Xfs,
}

fn start(rig: &mut Rig, filesystems: u32) -> Result<HelperClient> {
    make_pool(rig, filesystems)?;
    ensure!(rig.helper_flags == helper_flags());
    rig.started_helper()
}

fn publish(helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask(&mount_filesystem(id))?;
    helper.ask(&bind(id, id)).map(drop)
}

/// Ends a volume, and checks what it leaves.
fn end(rig: &Rig, helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask_all([unbind(id, id), unmount_filesystem(id)])?;
    check_image(rig, id).with_context(|| format!("the filesystem of {id}"))?;
    helper.ask(&delete(id)).map(drop)
}

fn a_filesystem_is_restored_as_it_was(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, 4)?;
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    let file = |id: &str| rig.target(id).join("file");
    // Not synced: the snapshot sees to that.
    fs::write(file("vol-a"), "before")?;
    let snapshot = take(&helper, "vol-a", "snap-1")?;
    ensure!(!snapshot.block && snapshot.size == bytes(SIZE), "{snapshot:?}");
    fs::write(file("vol-a"), "after")?;
    // A larger one shows the larger filesystem, and has nothing else than the original had.
    ensure!(helper.ask(&create_from("vol-b", filesystem_spec(2 * SIZE), "snap-1"))? == Reply::Size(bytes(2 * SIZE)));
    helper.ask(&create_from("vol-c", filesystem_spec(SIZE), "vol-a"))?;
    let (_, shared, _) = sharing(&helper, "vol-a")?;
    ensure!(shared > 0, "a filesystem's image is shared as well");
    for (id, content) in [("vol-b", "before"), ("vol-c", "after")] {
        publish(&helper, id)?;
        ensure!(fs::read_to_string(file(id))? == content, "{id}");
    }
    let space = rustix::fs::statvfs(rig.target("vol-b"))?;
    ensure!(space.f_blocks * space.f_frsize > SIZE * 3 / 2, "{} blocks", space.f_blocks);
    // All of them are mounted at once, although they have one uuid.
    fs::write(file("vol-b"), "own")?;
    ensure!(fs::read_to_string(file("vol-a"))? == "after");
    for id in ["vol-a", "vol-b", "vol-c"] {
        end(rig, &helper, id)?;
    }
    ensure!(listed(&helper, Some("vol-a"))?.len() == 1);
    helper.ask(&delete_snapshot("snap-1"))?;
    check_detached(rig)
}

/// Files are written and synced while snapshots are taken. Each must hold all that was synced before it.
fn a_snapshot_of_a_filesystem_in_use_is_whole(rig: &mut Rig) -> Result<()> {
    const SNAPSHOTS: usize = 12;
    let helper = start(rig, 4)?;
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    let (directory, is_over) = (rig.target("vol-a"), std::sync::atomic::AtomicBool::new(false));
    let synced = std::sync::atomic::AtomicUsize::new(0);
    let written = std::thread::scope(|scope| -> Result<Vec<usize>> {
        let write = scope.spawn(|| -> Result<()> {
            for number in 1.. {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let file = fs::File::create(directory.join(format!("file-{number}")))?;
                std::io::Write::write_all(&mut &file, &number.to_string().into_bytes().repeat(1000))?;
                file.sync_all()?;
                synced.store(number, std::sync::atomic::Ordering::SeqCst);
            }
            Ok(())
        });
        let taken: Result<Vec<usize>> = (0..SNAPSHOTS)
            .map(|number| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                let before = synced.load(std::sync::atomic::Ordering::SeqCst);
                take(&helper, "vol-a", &format!("snap-{number:02}")).map(|_| before)
            })
            .collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        write.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        taken
    })?;
    ensure!(written.is_sorted() && written.last() > Some(&0), "{written:?}");
    for (number, files) in written.into_iter().enumerate() {
        let snapshot = format!("snap-{number:02}");
        helper.ask(&create_from("vol-b", filesystem_spec(SIZE), &snapshot))?;
        publish(&helper, "vol-b")?;
        for file in 1..=files {
            let content = fs::read(rig.target("vol-b").join(format!("file-{file}")))?;
            ensure!(content == file.to_string().into_bytes().repeat(1000), "{snapshot}: file-{file}");
        }
        end(rig, &helper, "vol-b")?;
        helper.ask(&delete_snapshot(&snapshot))?;
    }
    end(rig, &helper, "vol-a")
}

/// A pod with the capability for it has frozen its filesystem: all that it wrote is on disk then.
fn a_frozen_filesystem_holds_up_nobody_else(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, 4)?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&create(id, filesystem_spec(SIZE)))?;
        publish(&helper, id)?;
        fs::write(rig.target(id).join("file"), id)?;
    }
    let freeze =
        |how: &str| bulkhead_tests::pool::run(std::process::Command::new("fsfreeze").arg(how).arg(rig.target("vol-a")));
    freeze("--freeze")?;
    let taken = take(&helper, "vol-a", "snap-a");
    let other = take(&helper, "vol-b", "snap-b");
    freeze("--unfreeze")?;
    taken?;
    other?;
    for (id, snapshot) in [("vol-a", "snap-a"), ("vol-b", "snap-b")] {
        helper.ask(&create_from("vol-c", filesystem_spec(SIZE), snapshot))?;
        publish(&helper, "vol-c")?;
        ensure!(fs::read_to_string(rig.target("vol-c").join("file"))? == id);
        end(rig, &helper, "vol-c")?;
        helper.ask(&delete_snapshot(snapshot))?;
        end(rig, &helper, id)?;
    }
    Ok(())
}

fn a_copy_counts_as_a_filesystem(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, 1)?;
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    // A snapshot is not mounted, and does not count.
    take(&helper, "vol-a", "snap-1")?;
    denied(
        helper.request(&create_from("vol-b", filesystem_spec(SIZE), "snap-1"))?,
        ErrorKind::NoSpace,
        "filesystems=1",
    )?;
    helper.ask(&delete("vol-a"))?;
    // It grows by the groups that it was made with, and no further.
    let large = Bytes::try_from(1 << 40)?;
    let mut spec = filesystem_spec(SIZE);
    spec.size = large;
    denied(helper.request(&create_from("vol-b", spec, "snap-1"))?, ErrorKind::Invalid, "too small to grow")?;
    helper.ask_all([create_from("vol-b", filesystem_spec(SIZE), "snap-1"), delete("vol-b")])
}
