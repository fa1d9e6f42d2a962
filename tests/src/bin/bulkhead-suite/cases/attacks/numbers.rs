//! A frontend that creates more and more of something, to exhaust the helper's memory.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind, PoolStatus, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{HelperClient, bind, create, delete, directory_spec, unbind};
use bulkhead_tests::stand::Stand;
use bulkhead_tests::wait;

cases! {
    volumes_without_end_are_refused: Bare,
    targets_without_end_are_refused: Bare,
    a_volume_with_targets_without_end_is_refused_more: Long,
}

fn start(stand: &mut Stand, flag: &str, number: usize) -> Result<HelperClient> {
    stand.helper_flags = vec![flag.to_owned(), number.to_string()];
    if stand.pools.is_empty() {
        stand.add_pool("default")?;
    } else {
        stand.kill_helper()?;
    }
    stand.start_helper()?;
    stand.helper()
}

fn pool_status(helper: &HelperClient) -> Result<PoolStatus> {
    match helper.ask(&Request::PoolStatus { pool: "default".parse()? })? {
        Reply::Pool(status) => Ok(status),
        other => bail!("no pool status: {other:?}"),
    }
}

fn volumes_without_end_are_refused(stand: &mut Stand) -> Result<()> {
    let spec = directory_spec(4096);
    let helper = start(stand, "--max-volumes", 3)?;
    for id in ["vol-a", "vol-b", "vol-c"] {
        ensure!(pool_status(&helper)?.available > 0);
        helper.ask(&create(id, spec))?;
    }
    denied(helper.request(&create("vol-d", spec))?, ErrorKind::NoSpace, "--max-volumes 3")?;
    helper.ask(&create("vol-c", spec))?;
    let status = pool_status(&helper)?;
    let conditions = status.conditions.as_slice();
    ensure!((status.available, status.largest_volume) == (0, 0), "{status:?}");
    ensure!(
        conditions.iter().any(|condition| matches!(condition, Condition::VolumeLimit { limit: 3, .. })),
        "{status:?}"
    );
    // Volumes beyond the limit of a later start are still served.
    let helper = start(stand, "--max-volumes", 2)?;
    helper.ask(&bind("vol-a", "a"))?;
    helper.ask(&unbind("vol-a", "a"))?;
    for id in ["vol-a", "vol-b"] {
        denied(helper.request(&create("vol-d", spec))?, ErrorKind::NoSpace, "--max-volumes 2")?;
        helper.ask(&delete(id))?;
    }
    // A deleted volume counts until it is gone.
    wait::until(stand.patience(Duration::from_secs(10)), || helper.ask(&create("vol-d", spec)).map(drop))?;
    for id in ["vol-c", "vol-d"] {
        helper.ask(&delete(id))?;
    }
    Ok(())
}

fn targets_without_end_are_refused(stand: &mut Stand) -> Result<()> {
    let helper = start(stand, "--max-targets", 2)?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&create(id, directory_spec(1 << 20)))?;
        helper.ask(&bind(id, id))?;
    }
    denied(helper.request(&bind("vol-a", "c"))?, ErrorKind::NoSpace, "--max-targets 2")?;
    ensure!(!stand.target("c").exists());
    helper.ask(&bind("vol-b", "vol-b"))?;
    // Targets beyond the limit of a later start are still known.
    let helper = start(stand, "--max-targets", 1)?;
    denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "work:vol-a")?;
    helper.ask(&unbind("vol-a", "vol-a"))?;
    denied(helper.request(&bind("vol-a", "c"))?, ErrorKind::NoSpace, "--max-targets 1")?;
    helper.ask(&unbind("vol-b", "vol-b"))?;
    helper.ask(&bind("vol-a", "c"))?;
    helper.ask(&unbind("vol-a", "c"))?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&delete(id))?;
    }
    Ok(())
}

fn a_volume_with_targets_without_end_is_refused_more(stand: &mut Stand) -> Result<()> {
    let helper = stand.helper()?;
    helper.ask(&create("vol-a", directory_spec(1 << 20)))?;
    for number in 0..1000 {
        helper.ask(&bind("vol-a", &number.to_string()))?;
    }
    denied(helper.request(&bind("vol-a", "beyond"))?, ErrorKind::NoSpace, "limit for one volume is 1000")?;
    for number in 0..1000 {
        helper.ask(&unbind("vol-a", &number.to_string()))?;
    }
    helper.ask(&delete("vol-a"))?;
    Ok(())
}
