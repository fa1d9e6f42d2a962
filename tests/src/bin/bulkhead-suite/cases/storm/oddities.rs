//! One pool, or one volume, is odd: the others are served all the same, and nothing is destroyed.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::pool::{Pool, RECORD, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, fremovexattr, fsetxattr, statvfs};

cases! {
    a_note_of_numbers_that_is_damaged_stops_no_other_pool: Bare,
    a_pool_that_cannot_be_bound_stops_no_other_pool: Bare,
    an_image_with_the_record_of_an_unused_directory_is_kept: Bare,
    small_inodes_in_a_full_pool: Bare + Host,
}

const SIZE: u64 = 1 << 20;

fn check_other(rig: &Rig) -> Result<()> {
    rig.helper()?.check_serves("other")
}

fn a_note_of_numbers_that_is_damaged_stops_no_other_pool(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    let marker = File::open(rig.pool().directory.join(".bulkhead"))?;
    for damage in [&[][..], &[1, 2, 3], &[0xff; 8], &[7; 9], &[7; 3000]] {
        fsetxattr(&marker, "trusted.bulkhead.numbers", damage, XattrFlags::empty())?;
        let started = rig.start_helper().and_then(|()| check_other(rig));
        if started.is_err() {
            fremovexattr(&marker, "trusted.bulkhead.numbers")?;
            rig.abandon();
            rig.start_helper()?;
        }
        started.with_context(|| format!("a note of {} bytes", damage.len()))?;
        rig.kill_helper()?;
    }
    fremovexattr(&marker, "trusted.bulkhead.numbers")?;
    rig.start_helper()
}

fn a_pool_that_cannot_be_bound_stops_no_other_pool(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    let directory = rig.pool().directory.clone();
    run(Command::new("mount").arg("--make-unbindable").arg(&directory))?;
    let started = rig.start_helper().and_then(|()| check_other(rig));
    rig.abandon();
    run(Command::new("mount").arg("--make-shared").arg(&directory))?;
    rig.start_helper()?;
    started
}

/// Attributes that were restored to the wrong directory.
fn an_image_with_the_record_of_an_unused_directory_is_kept(rig: &mut Rig) -> Result<()> {
    let helper = rig.started_helper()?;
    helper.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    helper.ask(&create(own("vol-b"), image_spec(SIZE)))?;
    helper.ask_all([attach(own("vol-b")), make_device(own("vol-b"), "b")])?;
    fs::write(rig.target("b"), "content")?;
    helper.ask_all([remove_device(own("vol-b"), "b"), detach(own("vol-b"))])?;
    rig.kill_helper()?;
    let ((_, other), (outer, mine)) = (rig.pool().record(own("vol-a"))?, rig.pool().record(own("vol-b"))?);
    fsetxattr(&outer, RECORD, &other, XattrFlags::REPLACE)?;
    rig.start_helper()?;
    std::thread::sleep(Duration::from_secs(1));
    let kept = fs::read(rig.pool().image(own("vol-b")));
    rig.kill_helper()?;
    if rig.pool().volume(own("vol-b")).exists() {
        fsetxattr(&outer, RECORD, &mine, XattrFlags::REPLACE)?;
    }
    drop(outer);
    rig.start_helper()?;
    let kept = kept.map(|content| content.starts_with(b"content"));
    ensure!(matches!(kept, Ok(true)), "the image was destroyed: {kept:?}");
    Ok(())
}

fn ext4_of_small_inodes(rig: &Rig, directory: &Path) -> Result<()> {
    let image = directory.with_extension("disk");
    File::create(&image)?.set_len(128 << 20)?;
    run(Command::new("mkfs.ext4").args(["-q", "-I", "128"]).arg(&image))?;
    fs::create_dir_all(directory)?;
    mount_image(&RunOptions { pool_fs: PoolFilesystem::Ext4, ..rig.run_options.clone() }, &image, directory)
}

fn fill(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    let (mut end, mut step) = (0, 1 << 28);
    while step >= 1024 {
        match fallocate(&file, FallocateFlags::empty(), end, step) {
            Ok(()) => end += step,
            Err(_) => step /= 2,
        }
    }
    ensure!(statvfs(path)?.f_bavail < 64, "it is not full");
    Ok(file)
}

fn small_inodes_in_a_full_pool(rig: &mut Rig) -> Result<()> {
    let directory = rig.work().join("pools/default");
    ext4_of_small_inodes(rig, &directory)?;
    rig.pools = vec![Pool::plain(&directory, "default")?];
    let helper = rig.started_helper()?;
    let ids = [own("vol-a"), own("vol-b"), own("vol-c")];
    for (number, id) in ids.iter().enumerate() {
        // No two volumes of one frontend have the same hash.
        let name_hash = bulkhead_protocol::NameHash([number as u8; 32]);
        helper.ask(&create(id, bulkhead_protocol::VolumeSpec { name_hash, ..directory_spec(SIZE) }))?;
    }
    fill(&directory.join("Filler"))?;
    let outcome = (|| {
        for id in ids {
            helper.ask(&bind(id, id)).with_context(|| format!("publish {id}"))?;
            helper.ask(&unbind(id, id))?;
            helper.ask(&delete(id)).with_context(|| format!("delete {id}"))?;
            fill(&directory.join(format!("Filler-{id}")))?;
        }
        Ok(())
    })();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.display().to_string().contains("Filler") {
            fs::remove_file(path)?;
        }
    }
    ids.iter().try_for_each(|id| helper.ask(&delete(id)).map(drop))?;
    outcome
}
