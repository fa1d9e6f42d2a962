//! What is synced to disk, and when: as little as the filesystem's journal allows.

use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_protocol::{MountFlags, PoolName, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::setting::{PoolFilesystem, Setting};
use bulkhead_tests::stand::Stand;
use bulkhead_tests::strace::Tracer;

cases! {
    a_journal_takes_one_sync_for_a_creation_and_none_for_a_publish: Bare,
}

const SIZE: u64 = 16 << 20;

/// A pool, and whether its filesystem has a journal.
fn make_pools(stand: &mut Stand) -> Result<Vec<(PoolName, bool)>> {
    let of = |pool_fs| Setting { pool_fs, ..stand.setting.clone() };
    let (xfs, ext4) = (of(PoolFilesystem::Xfs), of(PoolFilesystem::Ext4));
    let mut pools = Vec::new();
    for (setting, name, journal) in [(&xfs, "xfs", true), (&ext4, "ext4", true), (&ext4, "bare", false)] {
        let directory = stand.work().join("pools").join(name);
        stand.pools.push(Pool::make(setting, stand.templates(), &directory, name)?);
        if !journal {
            mounts::unmount_all(&directory)?;
            let image = directory.with_extension("disk");
            run(Command::new("tune2fs").args(["-O", "^has_journal"]).arg(&image))?;
            mount_image(setting, &image, &directory)?;
        }
        pools.push((name.parse()?, journal));
    }
    Ok(pools)
}

/// How often the helper calls fsync(2) during the operation.
fn syncs(stand: &mut Stand, operation: impl FnOnce() -> Result<()>) -> Result<usize> {
    let log = stand.work().join("syncs");
    let helper = i32::try_from(stand.running_helper()?.pid())?;
    let tracer = Tracer::follow_processes(&[helper], &log, &["-e", "trace=fsync,fdatasync,syncfs"])?;
    operation()?;
    Ok(tracer.end()?.lines().filter(|line| line.contains("sync")).count())
}

fn a_journal_takes_one_sync_for_a_creation_and_none_for_a_publish(stand: &mut Stand) -> Result<()> {
    let pools = make_pools(stand)?;
    stand.start_helper()?;
    let helper = stand.helper()?;
    for (pool, journal) in &pools {
        let (files, disk) = (volume(&format!("files-{pool}")), volume(&format!("disk-{pool}")));
        let at = target("work", &format!("files-{pool}"));
        let create = |volume, spec| Request::Create { volume, pool: pool.clone(), spec };
        let flags = MountFlags::default();
        let publish = || Request::BindMount { volume: files.clone(), target: at.clone(), flags, exclusive: false };
        let attach = || Request::LoopAttach { volume: disk.clone(), read_only: false };
        for (request, with_journal, without) in [
            (create(files.clone(), directory_spec(SIZE)), 1, 2),
            (publish(), 0, 1),
            (publish(), 0, 0),
            (create(disk.clone(), image_spec(SIZE)), 1, 3),
            (attach(), 0, 1),
            (attach(), 0, 0),
            (Request::GrowImage { volume: disk.clone(), size: (2 * SIZE).try_into()? }, 1, 2),
            (Request::Unmount { volume: files.clone(), target: at.clone() }, 0, 0),
            (Request::LoopDetach { volume: disk.clone() }, 0, 0),
            (Request::Delete { volume: files.clone() }, 1, 1),
            (Request::Delete { volume: disk.clone() }, 1, 1),
        ] {
            let made = syncs(stand, || helper.ask(&request).map(drop))?;
            let wanted = if *journal { with_journal } else { without };
            ensure!(made == wanted, "{} in pool {pool} is synced {made} times, not {wanted}", request.name());
        }
    }
    Ok(())
}
