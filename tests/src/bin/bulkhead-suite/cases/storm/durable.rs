//! A helper is killed between a change and its sync, and the machine loses power soon after its successor has answered
//! that the change is done.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Inodes, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::setting::{PoolFilesystem, Setting};
use bulkhead_tests::stand::Stand;
use bulkhead_tests::strace::Tracer;
use bulkhead_tests::wait;

cases! {
    an_expansion_on_xfs_that_a_killed_helper_has_not_synced: Bare,
    an_expansion_on_ext4_that_a_killed_helper_has_not_synced: Bare,
}

const SIZE: u64 = 1 << 20;

fn an_expansion_on_xfs_that_a_killed_helper_has_not_synced(stand: &mut Stand) -> Result<()> {
    expansion(stand, PoolFilesystem::Xfs)
}

fn an_expansion_on_ext4_that_a_killed_helper_has_not_synced(stand: &mut Stand) -> Result<()> {
    expansion(stand, PoolFilesystem::Ext4)
}

fn size(stand: &Stand, id: &str) -> Result<u64> {
    match stand.helper()?.ask(&Request::Usage { volume: volume(id), target: None })? {
        Reply::Usage(usage) => Ok(usage.spec.size.get()),
        other => anyhow::bail!("{other:?}"),
    }
}

fn expansion(stand: &mut Stand, filesystem: PoolFilesystem) -> Result<()> {
    let setting = Setting { pool_fs: filesystem, ..stand.setting.clone() };
    let directory = stand.work().join("pools/default");
    stand.pools = vec![Pool::make(&setting, stand.templates(), &directory, "default")?];
    stand.helper_flags.push("--seccomp=log".to_owned());
    let mut lost = Vec::new();
    for (id, request) in [
        (
            "vol-a",
            Request::SetQuota { volume: volume("vol-a"), size: bytes(2 * SIZE), inodes: Inodes::try_from(8192)? },
        ),
        ("vol-b", Request::GrowImage { volume: volume("vol-b"), size: bytes(2 * SIZE) }),
    ] {
        stand.start_helper()?;
        let spec = if id == "vol-a" { directory_spec(SIZE) } else { image_spec(SIZE) };
        stand.helper()?.ask(&create(id, spec))?;
        // From then on a start that lists the pool does not change its directory any more (relatime).
        std::thread::sleep(Duration::from_millis(100));
        stand.restart_helper()?;
        let process = i32::try_from(stand.running_helper()?.pid())?;
        let tracer = Tracer::kill(process, "fsync")?;
        ensure!(stand.helper()?.request(&request).is_err(), "it was not killed");
        let _ = stand.end_of_helper(stand.patience(Duration::from_secs(10)))?;
        drop(tracer);
        stand.start_helper()?;
        let answer = stand.helper()?.ask(&request).context("repeated")?;
        ensure!(answer == Reply::Size(bytes(2 * SIZE)), "{answer:?}");
        // The machine loses power.
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&directory))?;
        stand.kill_helper()?;
        wait::until(stand.patience(Duration::from_secs(10)), || mounts::unmount_all(&directory))?;
        wait::until(stand.patience(Duration::from_secs(10)), || {
            // As long as the helper's processes end, it is the old one.
            mounts::unmount_all(&directory)?;
            mount_image(&setting, &directory.with_extension("disk"), &directory)?;
            std::fs::File::open(directory.join(".bulkhead")).map(drop).context("the filesystem")
        })?;
        stand.start_helper()?;
        let found = size(stand, id)?;
        if found != 2 * SIZE {
            lost.push(format!("{id} was answered as having {} bytes, and has {found}", 2 * SIZE));
        }
        stand.helper()?.ask(&delete(id))?;
        stand.kill_helper()?;
    }
    stand.start_helper()?;
    ensure!(lost.is_empty(), "{lost:?}");
    Ok(())
}
