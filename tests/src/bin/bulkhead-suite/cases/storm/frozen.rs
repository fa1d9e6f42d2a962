//! One pool is frozen while the helper ends and is started anew: the other pools are served all the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Request, encode};
use bulkhead_tests::cases;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::mount_image;
use bulkhead_tests::stand::Stand;

use crate::cases::attacks::frozen::Frozen;

cases! {
    a_second_start_beside_a_frozen_pool_serves_the_others: Bare,
    a_helper_that_ends_while_it_waits_for_a_frozen_pool_has_a_successor: Bare,
}

const SIZE: u64 = 16 << 20;

fn pools(stand: &mut Stand, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| stand.add_pool(name))
}

fn create_in(pool: &str, id: &str) -> Result<Request> {
    Ok(Request::Create { volume: volume(id), pool: pool.parse()?, spec: directory_spec(SIZE) })
}

fn check_other(stand: &Stand) -> Result<()> {
    let helper = stand.helper()?;
    helper.ask(&create_in("other", "vol-o")?)?;
    helper.ask(&delete("vol-o")).map(drop)
}

/// The first start lets a child look at the frozen pool. It cannot be killed.
fn a_second_start_beside_a_frozen_pool_serves_the_others(stand: &mut Stand) -> Result<()> {
    pools(stand, &["default", "other"])?;
    let frozen = Frozen::freeze(&stand.pool().directory)?;
    for round in 0..2 {
        stand.start_helper().with_context(|| format!("round {round}"))?;
        check_other(stand)?;
        stand.kill_helper()?;
    }
    drop(frozen);
    stand.start_helper()
}

fn second(stand: &Stand) -> Result<Daemon> {
    let mut second = Daemon::start("second", &mut stand.helper_command()?, &stand.logs())?;
    // The old one still has its socket, and does not answer.
    std::thread::sleep(stand.patience(Duration::from_secs(6)));
    second.check_alive()?;
    let limit = stand.patience(Duration::from_secs(25));
    second.wait_until(limit, || HelperClient::welcomed(&stand.helper_socket()).map(drop))?;
    check_other(stand).map(|()| second)
}

/// It ends because a pool appears that was missing.
fn a_helper_that_ends_while_it_waits_for_a_frozen_pool_has_a_successor(stand: &mut Stand) -> Result<()> {
    pools(stand, &["default", "other", "late"])?;
    let late = stand.pools[2].directory.clone();
    mounts::unmount_all(&late)?;
    stand.start_helper()?;
    let frozen = Frozen::freeze(&stand.pool().directory)?;
    let client = stand.helper()?;
    client.send(&encode(&create("vol-a", directory_spec(SIZE)))?)?;
    ensure!(!client.is_answered(Duration::from_millis(500))?, "it does not wait");
    mount_image(&stand.setting, &late.with_extension("disk"), &late)?;
    // It either ends, or goes on serving.
    std::thread::sleep(stand.patience(Duration::from_secs(20)));
    let outcome = match stand.running_helper()?.check_alive() {
        // A connection to a helper that is about to end is never answered.
        Ok(()) => {
            let client = HelperClient::connect(&stand.helper_socket())?;
            client.send(&encode(&bulkhead_protocol::Hello::new(bulkhead_protocol::HIGHEST_VERSION))?)?;
            match client.is_answered(stand.patience(Duration::from_secs(3)))? {
                true => check_other(stand).context("it goes on"),
                false => Err(anyhow::anyhow!("it neither ends nor serves")),
            }
        }
        Err(_) => second(stand).and_then(Daemon::kill),
    };
    drop(frozen);
    let _ = stand.end_of_helper(stand.patience(Duration::from_secs(60)))?;
    outcome?;
    stand.start_helper()?;
    stand.helper()?.ask(&delete("vol-a")).map(drop)
}
