//! Content that an administrator has restored to a volume before its first use: the request that deletes only unused
//! volumes leaves it alone.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;

use crate::cases::filesystems;

cases! {
    files_restored_before_the_first_use_are_kept: Filesystem,
    an_image_restored_before_the_first_use_is_kept: Filesystem,
    a_filesystem_restored_before_the_first_use_is_kept: Bare + Filesystem,
    a_filesystem_that_is_as_it_was_made_is_deleted: Bare + Filesystem,
}

const SIZE: u64 = 4 << 20;

/// Checks, twice and after a restart, that a volume with content is kept, and that it can still be used and deleted.
fn check_kept(rig: &mut Rig, check: impl Fn(&Rig) -> Result<()>) -> Result<()> {
    for restart in [false, true] {
        if restart {
            rig.restart_helper()?;
        }
        for _ in 0..2 {
            denied(rig.helper()?.request(&discard("vol-a"))?, ErrorKind::Refused, "may hold data")?;
            check(rig)?;
        }
    }
    rig.helper()?.ask(&delete("vol-a"))?;
    Ok(())
}

fn files_restored_before_the_first_use_are_kept(rig: &mut Rig) -> Result<()> {
    for (name, content) in [("file", Some("content")), (".hidden", Some("")), ("directory", None)] {
        rig.helper()?.ask(&create("vol-a", directory_spec(SIZE)))?;
        let path = rig.pool().volume("vol-a").join("data").join(name);
        match content {
            Some(content) => fs::write(&path, content)?,
            None => fs::create_dir(&path)?,
        }
        check_kept(rig, |rig| {
            let path = rig.pool().volume("vol-a").join("data").join(name);
            ensure!(content.map_or_else(
                || path.is_dir(),
                |content| fs::read(&path).is_ok_and(|found| found == content.as_bytes())
            ));
            Ok(())
        })?;
    }
    // It is published as ever after it was refused.
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(SIZE)))?;
    fs::write(rig.pool().volume("vol-a").join("data/file"), "content")?;
    denied(helper.request(&discard("vol-a"))?, ErrorKind::Refused, "may hold data")?;
    helper.ask(&bind("vol-a", "a"))?;
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    Ok(())
}

fn an_image_restored_before_the_first_use_is_kept(rig: &mut Rig) -> Result<()> {
    for (spec, synced) in
        [(image_spec(SIZE), true), (image_spec(SIZE), false), (sparse_spec(SIZE), true), (sparse_spec(SIZE), false)]
    {
        for offset in [0, SIZE / 2, SIZE - 7] {
            rig.helper()?.ask(&create("vol-a", spec))?;
            let image = File::options().read(true).write(true).open(rig.pool().image("vol-a"))?;
            image.write_all_at(b"content", offset)?;
            if synced {
                image.sync_all()?;
            }
            check_kept(rig, |_| {
                let mut found = [0; 7];
                image.read_exact_at(&mut found, offset)?;
                ensure!(&found == b"content", "at {offset}: {found:?}");
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// The images of volumes with filesystems: sparse and whole.
fn specs() -> [bulkhead_protocol::VolumeSpec; 2] {
    [filesystem_spec(filesystems::SIZE), preallocated_filesystem_spec(filesystems::SIZE)]
}

/// A saved image is put back as the pages say, into a volume that was made anew: its record says that it was never used.
fn a_filesystem_restored_before_the_first_use_is_kept(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-s", specs()[0]), mount_filesystem("vol-s"), bind("vol-s", "s")])?;
    fs::write(rig.target("s/file"), "content")?;
    helper.ask_all([unbind("vol-s", "s"), unmount_filesystem("vol-s")])?;
    let saved = rig.work().join("saved");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        run(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).args([from, to]))
    };
    copy(&rig.pool().image("vol-s"), &saved)?;
    for spec in specs() {
        rig.eventually(10, || rig.helper()?.ask(&create("vol-a", spec)))?;
        copy(&saved, &rig.pool().image("vol-a"))?;
        for restart in [false, true] {
            if restart {
                rig.restart_helper()?;
            }
            denied(rig.helper()?.request(&discard("vol-a"))?, ErrorKind::Refused, "may hold data")?;
        }
        let helper = rig.helper()?;
        helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "a")])?;
        ensure!(fs::read(rig.target("a/file"))? == b"content");
        helper.ask_all([unbind("vol-a", "a"), unmount_filesystem("vol-a"), delete("vol-a")])?;
    }
    fs::remove_file(saved)?;
    Ok(())
}

/// Growing is no use, nor is a restart.
fn a_filesystem_that_is_as_it_was_made_is_deleted(rig: &mut Rig) -> Result<()> {
    filesystems::make_pool(rig, 3)?;
    rig.start_helper()?;
    for spec in specs() {
        for (grown, restart) in [(false, false), (true, false), (true, true)] {
            // The room of those before is free a moment later.
            rig.eventually(10, || rig.helper()?.ask(&create("vol-a", spec)))?;
            if grown {
                rig.eventually(10, || rig.helper()?.ask(&grow_filesystem("vol-a", 2 * filesystems::SIZE)))?;
            }
            if restart {
                rig.restart_helper()?;
            }
            rig.helper()?.ask(&discard("vol-a"))?;
            ensure!(!rig.pool().volume("vol-a").exists());
        }
    }
    Ok(())
}
