//! What is synced to disk, and when: as little as the filesystem's journal allows.

use anyhow::{Result, ensure};
use bulkhead_protocol::{MountFlags, PoolName, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use bulkhead_tests::strace::Tracer;

cases! {
    a_journal_takes_one_sync_for_a_creation_and_none_for_a_publish: Bare,
}

const SIZE: u64 = 16 << 20;

fn make_pools(rig: &mut Rig) -> Result<Vec<PoolName>> {
    let of = |pool_fs| RunOptions { pool_fs, ..rig.run_options.clone() };
    let (xfs, ext4) = (of(PoolFilesystem::Xfs), of(PoolFilesystem::Ext4));
    let mut pools = Vec::new();
    for (run_options, name) in [(&xfs, "xfs"), (&ext4, "ext4")] {
        let directory = rig.work().join("pools").join(name);
        rig.pools.push(Pool::make(run_options, rig.templates(), &directory, name)?);
        pools.push(name.parse()?);
    }
    Ok(pools)
}

/// How often the helper calls fsync(2) during the operation.
fn syncs(rig: &mut Rig, operation: impl FnOnce() -> Result<()>) -> Result<usize> {
    let log = rig.work().join("syncs");
    let helper = rig.helper_pid()?;
    let tracer = Tracer::follow_processes(&[helper], &log, &["-e", "trace=fsync,fdatasync,syncfs"])?;
    operation()?;
    // A call that another thread's call falls into has two lines.
    Ok(tracer.end()?.lines().filter(|line| line.contains("sync") && !line.contains("resumed>")).count())
}

fn a_journal_takes_one_sync_for_a_creation_and_none_for_a_publish(rig: &mut Rig) -> Result<()> {
    let pools = make_pools(rig)?;
    let helper = rig.started_helper()?;
    for pool in &pools {
        let (files, disk) = (volume(&format!("files-{pool}")), volume(&format!("disk-{pool}")));
        let at = target("work", &format!("files-{pool}"));
        let create = |volume, spec| Request::Create { volume, pool: pool.clone(), spec };
        let flags = MountFlags::default();
        let publish = || Request::BindMount { volume: files.clone(), target: at.clone(), flags, exclusive: false };
        let attach = || Request::LoopAttach { volume: disk.clone(), read_only: false };
        for (request, wanted) in [
            (create(files.clone(), directory_spec(SIZE)), 1),
            (publish(), 0),
            (publish(), 0),
            (create(disk.clone(), image_spec(SIZE)), 1),
            (attach(), 0),
            (attach(), 0),
            (Request::GrowImage { volume: disk.clone(), size: (2 * SIZE).try_into()? }, 1),
            (Request::Unmount { volume: files.clone(), target: at.clone() }, 0),
            // What a pod has written to the device is written out.
            (Request::LoopDetach { volume: disk.clone() }, 1),
            (Request::Delete { volume: files.clone() }, 1),
            (Request::Delete { volume: disk.clone() }, 1),
        ] {
            let made = syncs(rig, || helper.ask(&request).map(drop))?;
            ensure!(made == wanted, "{} in pool {pool} is synced {made} times, not {wanted}", request.name());
        }
    }
    Ok(())
}
