//! A helper is killed between a change and its sync, and the machine loses power soon after its successor has answered
//! that the change is done.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Inodes, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::{Pool, mount_anew, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use bulkhead_tests::strace::Tracer;

cases! {
    an_expansion_on_xfs_that_a_killed_helper_has_not_synced: Bare,
    an_expansion_on_ext4_that_a_killed_helper_has_not_synced: Bare,
}

const SIZE: u64 = 1 << 20;

fn an_expansion_on_xfs_that_a_killed_helper_has_not_synced(rig: &mut Rig) -> Result<()> {
    expansion(rig, PoolFilesystem::Xfs)
}

fn an_expansion_on_ext4_that_a_killed_helper_has_not_synced(rig: &mut Rig) -> Result<()> {
    expansion(rig, PoolFilesystem::Ext4)
}

fn expansion(rig: &mut Rig, filesystem: PoolFilesystem) -> Result<()> {
    let run_options = RunOptions { pool_fs: filesystem, ..rig.run_options.clone() };
    let directory = rig.work().join("pools/default");
    rig.pools = vec![Pool::make(&run_options, rig.templates(), &directory, "default")?];
    rig.helper_flags.push("--seccomp=log".to_owned());
    let mut lost = Vec::new();
    for (id, request) in [
        (
            "vol-a",
            Request::SetQuota { volume: volume("vol-a"), size: bytes(2 * SIZE), inodes: Inodes::try_from(8192)? },
        ),
        ("vol-b", Request::GrowImage { volume: volume("vol-b"), size: bytes(2 * SIZE) }),
    ] {
        rig.start_helper()?;
        let spec = if id == "vol-a" { directory_spec(SIZE) } else { image_spec(SIZE) };
        rig.helper()?.ask(&create(id, spec))?;
        // From then on a start that lists the pool does not change its directory any more (relatime).
        std::thread::sleep(Duration::from_millis(100));
        rig.restart_helper()?;
        let process = rig.helper_pid()?;
        let tracer = Tracer::kill(process, "fsync")?;
        ensure!(rig.helper()?.request(&request).is_err(), "it was not killed");
        let _ = rig.end_of_helper(rig.patience(Duration::from_secs(10)))?;
        drop(tracer);
        rig.start_helper()?;
        let answer = rig.helper()?.ask(&request).context("repeated")?;
        ensure!(answer == Reply::Size(bytes(2 * SIZE)), "{answer:?}");
        // The machine loses power.
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&directory))?;
        rig.kill_helper()?;
        mount_anew(&run_options, &directory)?;
        rig.start_helper()?;
        let found = rig.helper()?.usage(id, None)?.spec.size.get();
        if found != 2 * SIZE {
            lost.push(format!("{id} was answered as having {} bytes, and has {found}", 2 * SIZE));
        }
        rig.helper()?.ask(&delete(id))?;
        rig.kill_helper()?;
    }
    rig.start_helper()?;
    ensure!(lost.is_empty(), "{lost:?}");
    Ok(())
}
