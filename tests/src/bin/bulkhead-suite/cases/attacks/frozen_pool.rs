//! A pool whose filesystem blocks every change: the other pools keep working.

use std::fs::{self, File};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::{create, create_in, delete, directory_spec, image_spec};
use bulkhead_tests::rig::Rig;
use rustix::fs::statvfs;

use super::frozen::Frozen;

cases! {
    a_frozen_pool_does_not_keep_others_from_being_emptied: Filesystem + Bare,
}

const MIB: u64 = 1 << 20;

fn a_frozen_pool_does_not_keep_others_from_being_emptied(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    rig.start()?;
    let helper = rig.helper()?;
    helper.ask_all(["frozen-0", "frozen-1"].map(|id| create_in("other", id, image_spec(32 * MIB))))?;
    helper.ask(&create("frozen-large", directory_spec(32 * MIB)))?;
    let data = rig.pool().volume("frozen-large").join("data");
    for number in 0..4000 {
        File::create(data.join(number.to_string()))?;
    }
    let (frozen, healthy) = (rig.pools[0].clone(), rig.pools[1].clone());
    let free = statvfs(&healthy.directory)?.f_bavail;
    // The emptier is working on it when the pool is frozen.
    helper.ask(&delete("frozen-large"))?;
    let thaw = Frozen::freeze(&frozen.directory)?;
    ensure!(frozen.entries()?.iter().any(|name| name.starts_with('.')), "it was emptied too fast for this test");
    helper.ask_all(["frozen-0", "frozen-1"].map(delete))?;
    rig.eventually(10, || {
        healthy.holds(&[])?;
        let now = statvfs(&healthy.directory)?.f_bavail;
        ensure!(now > free + 48 * MIB / 4096, "{now} blocks are free, and {free} were");
        Ok(())
    })?;
    // Their projects are released a moment after their last blocks.
    rig.eventually(5, || check_emptying(rig, "other", 0))?;
    if !rig.run_options.enforces_sizes() {
        check_emptying(rig, "default", 1)?;
    }
    drop(thaw);
    rig.eventually(20, || frozen.holds(&[]))?;
    ensure!(fs::metadata(frozen.directory.join(".bulkhead"))?.is_file());
    rig.eventually(5, || check_emptying(rig, "default", 0))
}

/// Checks that a pool's status reports how many deleted volumes still exist, and that it does so quickly.
fn check_emptying(rig: &Rig, pool: &str, wanted: u32) -> Result<()> {
    let (helper, pool) = (rig.helper()?, pool.to_owned());
    let (send, answer) = mpsc::channel();
    std::thread::spawn(move || drop(send.send(helper.pool_status(&pool))));
    let status = answer.recv_timeout(rig.patience(Duration::from_secs(5))).context("there is no answer")??;
    ensure!(status.emptying == wanted, "{} are being emptied", status.emptying);
    Ok(())
}
