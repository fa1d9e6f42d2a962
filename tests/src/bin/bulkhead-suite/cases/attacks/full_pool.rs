//! A pool that somebody keeps completely full: deleted volumes must go all the same.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::VolumeSpec;
use bulkhead_tests::cases;
use bulkhead_tests::helper::{create, delete, directory_spec, directory_spec_with, image_spec};
use bulkhead_tests::rig::Rig;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, mkdirat, openat, statvfs};

cases! {
    a_pool_and_its_directory_without_room_for_a_longer_name: Filesystem + OwnPool,
    an_unfinished_volume_in_a_full_pool: Filesystem + OwnPool,
    deep_directories_with_thousands_of_siblings_in_a_full_pool: OwnPool,
    deep_directories_with_thousands_of_siblings_in_a_full_quota: Quota + OwnPool,
    directories_that_wait_for_each_other_in_a_full_pool: OwnPool,
}

const MIB: u64 = 1 << 20;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Takes every block that is currently free, and returns how many bytes that was.
fn fill(file: &File) -> Result<u64> {
    let begin = file.metadata()?.len();
    let (mut end, mut step) = (begin, 1 << 28);
    while step >= 4096 {
        if fallocate(file, FallocateFlags::empty(), end, step).is_err() {
            step /= 2;
        }
        end = file.metadata()?.len();
    }
    Ok(end - begin)
}

/// Waits until only these entries are left in the pool, which is kept full all the while.
fn wait_in_full_pool(rig: &Rig, filler: &File, left: &[String]) -> Result<()> {
    rig.eventually(40, || {
        fill(filler)?;
        let found = rig.pool().entries()?;
        ensure!(found == left, "{} entries: {:?}", found.len(), &found[..found.len().min(20)]);
        Ok(())
    })
}

/// Creates every name that the pool's directory can hold without another block, and returns them.
fn crowd(pool: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let linked = pool.join("Filler");
    for length in (1..=24).rev() {
        for number in 0.. {
            let name = format!("C{}{number:03}", "x".repeat(length));
            match fs::hard_link(&linked, pool.join(&name)) {
                Ok(()) => names.push(name),
                Err(_) => break,
            }
        }
    }
    Ok(names)
}

fn a_pool_and_its_directory_without_room_for_a_longer_name(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    let pool = rig.pool().directory.clone();
    let ids: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    for id in &ids {
        helper.ask(&create(id, if id == "v7" { image_spec(32 * MIB) } else { directory_spec(MIB) }))?;
    }
    let filler = File::create_new(pool.join("Filler"))?;
    fill(&filler)?;
    let mut left = crowd(&pool)?;
    let full = statvfs(&pool)?;
    ensure!(!left.is_empty() && full.f_bavail < 64, "the pool is not full");
    for id in &ids {
        helper.ask(&delete(id)).with_context(|| format!("{} names are in the way", left.len()))?;
    }
    left.push("Filler".to_owned());
    left.sort();
    rig.eventually(20, || {
        let found = rig.pool().entries()?;
        ensure!(found == left, "{found:?}");
        ensure!(statvfs(&pool)?.f_bfree > full.f_bfree + 24 * MIB / 4096, "the room has not come back");
        Ok(())
    })?;
    left.iter().try_for_each(|name| Ok(fs::remove_file(pool.join(name))?))
}

fn an_unfinished_volume_in_a_full_pool(rig: &mut Rig) -> Result<()> {
    let pool = rig.pool().directory.clone();
    // What a helper leaves behind if it is killed during a creation.
    rig.kill_helper()?;
    fs::create_dir(pool.join(".making.v0"))?;
    File::create(pool.join(".making.v0/image"))?;
    let filler = File::create_new(pool.join("Filler"))?;
    fill(&filler)?;
    let mut left = crowd(&pool)?;
    rig.start_helper()?;
    left.push("Filler".to_owned());
    left.sort();
    wait_in_full_pool(rig, &filler, &left)?;
    drop(filler);
    left.iter().try_for_each(|name| fs::remove_file(pool.join(name)))?;
    // XFS frees the blocks of an unlinked file a moment later.
    rig.eventually(10, || rig.helper()?.ask(&create("v0", directory_spec(MIB))).map(drop))?;
    Ok(())
}

/// Makes 40 nested directories; two of them contain `siblings` more, some of which contain another one.
fn make_comb(top: &Path, siblings: usize) -> Result<()> {
    let mut directory = openat(CWD, top, DIRECTORY, Mode::empty())?;
    for depth in 0..40 {
        if matches!(depth, 31 | 35) {
            for number in 0..siblings {
                let name = format!("sibling-with-a-long-name-{number}");
                mkdirat(&directory, &*name, Mode::RWXU)?;
                if number % 50 == 0 {
                    mkdirat(&directory, format!("{name}/inner"), Mode::RWXU)?;
                }
            }
        }
        directory = enter(&directory, "d")?;
    }
    Ok(())
}

/// Makes a directory and opens it.
fn enter(parent: &OwnedFd, name: &str) -> Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    Ok(openat(parent, name, DIRECTORY, Mode::empty())?)
}

fn deep_directories_with_thousands_of_siblings_in_a_full_pool(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("v0", many_files(256 * MIB)))?;
    make_comb(&rig.pool().volume("v0").join("data"), 5000)?;
    delete_in_full_pool(rig)
}

/// Fills the pool, deletes the volume and waits until it is gone.
fn delete_in_full_pool(rig: &Rig) -> Result<()> {
    let filler = File::create_new(rig.pool().directory.join("Filler"))?;
    fill(&filler)?;
    rig.helper()?.ask(&delete("v0"))?;
    wait_in_full_pool(rig, &filler, &["Filler".to_owned()])?;
    Ok(fs::remove_file(rig.pool().directory.join("Filler"))?)
}

fn deep_directories_with_thousands_of_siblings_in_a_full_quota(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    // ext4 takes a block for each directory.
    helper.ask(&create("v0", many_files(24 * MIB)))?;
    let data = rig.pool().volume("v0").join("data");
    make_comb(&data, 1000)?;
    // Deep inside, so that no space is freed before most directories are gone.
    let deepest = data.join("d/".repeat(40)).join("file");
    let file = File::create(deepest)?;
    ensure!(fill(&file)? > 0, "nothing was free");
    helper.ask(&delete("v0"))?;
    rig.eventually(40, || rig.pool().holds(&[]))
}

/// More directories are too deep than there are names available at the top, and each has others below it.
fn directories_that_wait_for_each_other_in_a_full_pool(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("v0", many_files(256 * MIB)))?;
    let top = openat(CWD, rig.pool().volume("v0").join("data"), DIRECTORY, Mode::empty())?;
    for comb in 0..24 {
        let mut directory = enter(&top, &comb.to_string())?;
        for depth in 1..110 {
            if depth % 10 == 1 {
                for number in 0..12 {
                    enter(&enter(&directory, &number.to_string())?, "e")?;
                }
            }
            directory = enter(&directory, "d")?;
        }
    }
    delete_in_full_pool(rig)
}

/// A directory volume with enough inodes.
fn many_files(size: u64) -> VolumeSpec {
    directory_spec_with(size, 100_000)
}
