//! All who share a block are charged for it, and it exists once. Whatever volumes share, the pool promises no more than
//! there is, hardly less, and each volume can use what it was promised.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::quotas;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::PoolFilesystem;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, ioctl_ficlone, setxattr, statvfs};

cases! {
    what_volumes_share_is_not_promised_twice: Quota + OwnPool,
}

const MIB: u64 = 1 << 20;
const VOLUMES: usize = 4;
const SIZE: u64 = 64 * MIB;
/// How long the helper relies on the space it measured.
const SPACE_LASTS: Duration = Duration::from_millis(1100);
/// More than the largest extended attribute that fits in an inode, and less than a block: ext4 gives files with equal
/// ones a block that they share.
const ATTRIBUTE: [u8; 3000] = [b'x'; 3000];
/// A filesystem's own figures may become that much greater than they were in an empty pool, by rounding.
const TOLERANCE: u64 = MIB / 4;

/// Files in the directories of volumes.
struct Tenants {
    random: Random,
    directories: Vec<PathBuf>,
    files: Vec<(usize, PathBuf)>,
    made: usize,
}

impl Tenants {
    /// Does something that a tenant could do. What its quota refuses is refused.
    fn act(&mut self, shares_extents: bool) -> Result<()> {
        match self.random.below(if self.files.is_empty() { 1 } else { 8 }) {
            0 | 1 => self.write()?,
            2..=4 if shares_extents => self.clone()?,
            5 => {
                let (_, path) = &self.files[self.random.below(self.files.len())];
                let file = File::options().write(true).open(path)?;
                let length = usize::try_from(file.metadata()?.len() / 2 + 1)?;
                drop(file.write_all_at(&vec![2; length], 0));
            }
            6 => {
                let (_, path) = self.files.swap_remove(self.random.below(self.files.len()));
                fs::remove_file(path)?;
            }
            _ => self.attributes()?,
        }
        Ok(())
    }

    fn new_file(&mut self) -> Result<(File, PathBuf)> {
        let volume = self.random.below(self.directories.len());
        self.made += 1;
        let path = self.directories[volume].join(format!("file-{}", self.made));
        let file = match File::create_new(&path) {
            // The volume is too full for a name; XFS says so as if the filesystem were.
            Err(error) if matches!(error.kind(), ErrorKind::QuotaExceeded | ErrorKind::StorageFull) => {
                self.files.extract_if(.., |(of, _)| *of == volume).try_for_each(|(_, full)| fs::remove_file(full))?;
                File::create_new(&path)?
            }
            made => made?,
        };
        self.files.push((volume, path.clone()));
        Ok((file, path))
    }

    fn write(&mut self) -> Result<()> {
        let mebibytes = 1 + self.random.below(12);
        let (file, _) = self.new_file()?;
        drop(file.write_all_at(&vec![1; mebibytes << 20], 0));
        Ok(())
    }

    /// As cp(1) does by default: in the same volume or across two.
    fn clone(&mut self) -> Result<()> {
        let source = File::open(&self.files[self.random.below(self.files.len())].1)?;
        let (file, _) = self.new_file()?;
        _ = ioctl_ficlone(&file, &source);
        Ok(())
    }

    fn attributes(&mut self) -> Result<()> {
        for _ in 0..40 {
            let (_, path) = self.new_file()?;
            _ = setxattr(&path, "user.attribute", &ATTRIBUTE, XattrFlags::empty());
        }
        Ok(())
    }
}

/// Takes all that a directory's quota and the filesystem leave.
fn fill(directory: &Path) -> Result<()> {
    let file = File::create_new(directory.join("fill"))?;
    let (mut end, mut step) = (0, 1 << 26);
    while step >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), end, step) {
            Ok(()) => end += step,
            Err(_) => step /= 2,
        }
    }
    Ok(())
}

fn what_volumes_share_is_not_promised_twice(rig: &mut Rig) -> Result<()> {
    let pool = rig.pool().directory.clone();
    let helper = rig.helper()?;
    let empty = helper.pool_status("default")?.available;
    let ids: Vec<String> = (0..VOLUMES).map(|number| format!("vol-{number}")).collect();
    for id in &ids {
        helper.ask(&create(id, directory_spec(SIZE)))?;
    }
    let shares_extents = rig.run_options.pool_fs == PoolFilesystem::Xfs;
    let directories: Vec<PathBuf> = ids.iter().map(|id| rig.pool().volume(id).join("data")).collect();
    let mut tenants = Tenants { random: Random::new(22), directories, files: Vec::new(), made: 0 };
    let (rounds, mut least, mut most_charged) = (if rig.run_options.long { 60 } else { 12 }, u64::MAX, 0);
    for round in 0..rounds {
        for _ in 0..10 {
            tenants.act(shares_extents)?;
        }
        rustix::fs::syncfs(File::open(&pool)?)?;
        if round % 6 == 5 {
            rig.restart_helper()?;
        }
        std::thread::sleep(SPACE_LASTS);
        let status = rig.helper()?.pool_status("default")?;
        let charged: u64 = quotas::blocks(&pool)?.iter().map(|quota| quota.used * 1024).sum();
        let beyond = (charged + statvfs(&pool)?.f_bavail * 4096).saturating_sub(empty);
        (least, most_charged) = (least.min(status.available + status.promised), most_charged.max(beyond));
        ensure!(
            status.available + status.promised <= empty + TOLERANCE,
            "round {round}: {} bytes can be promised in a pool that had {empty} when it was empty; {status:?}",
            status.available + status.promised
        );
        ensure!(status.conditions.as_slice().is_empty(), "{status:?}");
    }
    println!(
        "{rounds} rounds: of {empty} bytes at least {least} can be promised; charges and free blocks were up to \
         {most_charged} more than there is"
    );
    ensure!(most_charged > 0 || !shares_extents, "nothing was shared");
    ensure!(least >= empty / 100 * 98, "only {least} of {empty} bytes can be promised");
    keep_promises(rig, &tenants)
}

/// Promises all that is left to another volume, and fills all of them up.
fn keep_promises(rig: &mut Rig, tenants: &Tenants) -> Result<()> {
    let pool = rig.pool().directory.clone();
    let helper = rig.helper()?;
    let last = helper.pool_status("default")?.largest_volume;
    let inodes = 4096 * u64::from(helper.pool_status("default")?.inode_size);
    let last = (last - inodes) / 4096 * 4096;
    helper.ask(&create("last", directory_spec(last)))?;
    fill(&rig.pool().volume("last").join("data"))?;
    for (_, path) in &tenants.files {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
    }
    tenants.directories.iter().try_for_each(|directory| fill(directory))?;
    let found = quotas::blocks(&pool)?;
    ensure!(found.len() == VOLUMES + 1, "{found:?}");
    for quota in &found {
        ensure!(quota.used + 256 >= quota.limit, "a volume could not use what it was promised: {quota:?}");
    }
    Ok(())
}
