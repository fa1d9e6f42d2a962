//! One pool is frozen while the helper ends and is started anew: the other pools are served all the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::encode;
use bulkhead_tests::cases;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::mount_image;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;

use crate::cases::attacks::frozen::Frozen;

cases! {
    a_second_start_beside_a_frozen_pool_serves_the_others: Bare + Slow,
    a_helper_that_ends_while_it_waits_for_a_frozen_pool_has_a_successor: Bare + Slow,
}

const SIZE: u64 = 16 << 20;

fn check_other(rig: &Rig) -> Result<()> {
    rig.helper()?.check_serves("other")
}

/// The first start lets a child look at the frozen pool. It cannot be killed.
fn a_second_start_beside_a_frozen_pool_serves_the_others(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    for round in 0..2 {
        rig.start_helper_beside_hung().with_context(|| format!("round {round}"))?;
        check_other(rig)?;
        rig.kill_helper()?;
    }
    drop(frozen);
    rig.start_helper()
}

fn second(rig: &Rig) -> Result<Daemon> {
    let mut second = Daemon::start("second", &mut rig.helper_command()?, &rig.logs())?;
    // The old one still has its socket, and does not answer.
    std::thread::sleep(Duration::from_secs(6));
    second.check_alive()?;
    let limit = rig.patience(Duration::from_secs(25));
    second.wait_until(limit, || HelperClient::welcomed(&rig.helper_socket()).map(drop))?;
    check_other(rig).map(|()| second)
}

/// It ends because a pool appears that was missing.
fn a_helper_that_ends_while_it_waits_for_a_frozen_pool_has_a_successor(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other", "late"])?;
    let late = rig.pools[2].directory.clone();
    mounts::unmount_all(&late)?;
    rig.start_helper()?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    let client = rig.helper()?;
    client.send(&encode(&create("frozen-a", directory_spec(SIZE)))?)?;
    ensure!(!client.is_answered(Duration::from_millis(500))?, "it does not wait");
    mount_image(&rig.run_options, &late.with_extension("disk"), &late)?;
    // It either ends, or goes on serving.
    let ended = wait::until(Duration::from_secs(20), || {
        ensure!(rig.running_helper()?.check_alive().is_err(), "it goes on");
        Ok(())
    });
    let outcome = match ended {
        // A connection to a helper that is about to end is never answered.
        Err(_) => {
            let client = HelperClient::connect(&rig.helper_socket())?;
            client.send(&encode(&bulkhead_protocol::Hello::new(bulkhead_protocol::HIGHEST_VERSION))?)?;
            match client.is_answered(rig.patience(Duration::from_secs(3)))? {
                true => check_other(rig).context("it goes on"),
                false => Err(anyhow::anyhow!("it neither ends nor serves")),
            }
        }
        Ok(()) => second(rig).and_then(Daemon::kill),
    };
    drop(frozen);
    let _ = rig.end_of_helper(rig.patience(Duration::from_secs(60)))?;
    outcome?;
    // It was asked for on a connection that is not recorded.
    rig.started_helper()?.ask(&delete("frozen-a")).map(drop)
}
