//! A frontend that creates more and more of something, to exhaust the helper's memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{HelperClient, attach, bind, create, delete, detach, directory_spec, image_spec, unbind};
use bulkhead_tests::observe::loops;
use bulkhead_tests::rig::Rig;

cases! {
    volumes_without_end_are_refused: Bare,
    targets_without_end_are_refused: Bare,
    a_volume_with_targets_without_end_is_refused_more: Long,
    devices_without_end_are_held_back: Alone("counts all devices of the host"),
    a_number_of_a_device_is_not_used_by_the_next_helper,
}

/// The first number of the helpers' own devices.
const OURS: u32 = 0x8_0000;

fn start(rig: &mut Rig, flag: &str, number: usize) -> Result<HelperClient> {
    rig.helper_flags = vec![flag.to_owned(), number.to_string()];
    if rig.pools.is_empty() {
        rig.add_pool("default")?;
    } else {
        rig.kill_helper()?;
    }
    rig.started_helper()
}

fn volumes_without_end_are_refused(rig: &mut Rig) -> Result<()> {
    let spec = directory_spec(4096);
    let helper = start(rig, "--max-volumes", 3)?;
    for id in ["vol-a", "vol-b", "vol-c"] {
        ensure!(helper.pool_status("default")?.available > 0);
        helper.ask(&create(id, spec))?;
    }
    denied(helper.request(&create("vol-d", spec))?, ErrorKind::NoSpace, "--max-volumes 3")?;
    helper.ask(&create("vol-c", spec))?;
    let status = helper.pool_status("default")?;
    let conditions = status.conditions.as_slice();
    ensure!((status.available, status.largest_volume) == (0, 0), "{status:?}");
    ensure!(
        conditions.iter().any(|condition| matches!(condition, Condition::VolumeLimit { limit: 3, .. })),
        "{status:?}"
    );
    // Volumes beyond the limit of a later start are still served.
    let helper = start(rig, "--max-volumes", 2)?;
    helper.ask_all([bind("vol-a", "a"), unbind("vol-a", "a")])?;
    for id in ["vol-a", "vol-b"] {
        denied(helper.request(&create("vol-d", spec))?, ErrorKind::NoSpace, "--max-volumes 2")?;
        helper.ask(&delete(id))?;
    }
    // A deleted volume counts until it is gone.
    rig.eventually(10, || helper.ask(&create("vol-d", spec)).map(drop))?;
    Ok(())
}

fn targets_without_end_are_refused(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, "--max-targets", 2)?;
    for id in ["vol-a", "vol-b"] {
        helper.ask_all([create(id, directory_spec(1 << 20)), bind(id, id)])?;
    }
    denied(helper.request(&bind("vol-a", "c"))?, ErrorKind::NoSpace, "--max-targets 2")?;
    ensure!(!rig.target("c").exists());
    helper.ask(&bind("vol-b", "vol-b"))?;
    // Targets beyond the limit of a later start are still known.
    let helper = start(rig, "--max-targets", 1)?;
    denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "work:vol-a")?;
    helper.ask(&unbind("vol-a", "vol-a"))?;
    denied(helper.request(&bind("vol-a", "c"))?, ErrorKind::NoSpace, "--max-targets 1")?;
    helper.ask_all([unbind("vol-b", "vol-b"), bind("vol-a", "c")])
}

fn a_volume_with_targets_without_end_is_refused_more(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(1 << 20)))?;
    for number in 0..1000 {
        helper.ask(&bind("vol-a", &number.to_string()))?;
    }
    denied(helper.request(&bind("vol-a", "beyond"))?, ErrorKind::NoSpace, "limit for one volume is 1000")
}

/// The kernel takes far longer to remove a device than to make one.
fn devices_without_end_are_held_back(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-first", image_spec(1 << 20)), attach("vol-first")])?;
    let first = rig.pool().only_device()?.number().context("a loop device without a number")?;
    let devices = || loops::made_since(first).map(|devices| devices.len());
    let before = devices()?;
    let clients = (0..4).map(|_| rig.helper()).collect::<Result<Vec<_>>>()?;
    let refused = AtomicUsize::new(0);
    let limit = rig.patience(Duration::from_secs(3));
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                let (id, refused) = (format!("vol-{number}"), &refused);
                scope.spawn(move || -> Result<()> {
                    client.ask_patiently(&create(&id, image_spec(1 << 20)))?;
                    let begun = Instant::now();
                    while begun.elapsed() < limit {
                        match client.request(&attach(&id))? {
                            // So many refusals may leave no place in the log.
                            Ok(_) => drop(client.ask_patiently(&detach(&id))?),
                            Err(error) if error.kind == ErrorKind::Busy => drop(refused.fetch_add(1, Relaxed)),
                            Err(error) => bail!("{error}"),
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    let there = devices()?;
    ensure!(there < before + 200, "{there} devices, and {before} before");
    // On a slow machine the kernel may keep up.
    ensure!(refused.load(Relaxed) > 0 || there < before + 128, "{there} devices, and nothing was held back");
    // Those that the helper keeps ready stay.
    rig.eventually(20, || {
        let there = devices()?;
        ensure!(there <= before + 10, "{there} devices are left, and {before} were there before");
        Ok(())
    })
}

/// A container may keep a node for a device of which nothing is left.
fn a_number_of_a_device_is_not_used_by_the_next_helper(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", image_spec(1 << 20)))?;
    let mut numbers = Vec::new();
    for round in 0..8 {
        let helper = rig.helper()?;
        helper.ask(&attach("vol-a"))?;
        let bound = loops::backed_by(&rig.pool().device()?)?;
        numbers.push(bound.first().and_then(loops::Loop::number).context("no device is attached")?);
        helper.ask(&detach("vol-a"))?;
        if round % 2 == 0 {
            rig.restart_helper()?;
        }
    }
    // Several threads make devices in advance, so those of one helper may come in another order.
    let used: BTreeSet<u32> = numbers.iter().copied().collect();
    ensure!(used.len() == numbers.len(), "a number is used again: {numbers:?}");
    let near = |number: &u32| (number + OURS - 1 + 1000 - numbers[0]) % (OURS - 1) < 2000;
    ensure!(numbers.iter().all(near), "{numbers:?}");
    Ok(())
}
