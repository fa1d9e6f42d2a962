//! What a tenant does to the filesystem, the places and the processes that it shares with others: the lives of another's
//! volumes, in the same pool, take no longer than they may.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Request, encode};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::neighbour::{beside_clients, is_not_delayed};
use bulkhead_tests::observe::processes;
use bulkhead_tests::pace::patience;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait::until;
use rustix::process::Signal;

use super::attacks::frozen::Frozen;
use super::filesystems::{SIZE, check_detached, make_pool, mounter_of};

cases! {
    is_not_delayed_by_who_freezes_filesystems_and_grows_them: Bare + Filesystem + Alone(MEASURES),
    is_not_delayed_by_mounts_that_do_not_end: Bare + Filesystem + Alone(MEASURES),
    is_not_delayed_by_who_fills_and_deletes_volumes: Bare + Filesystem + Alone(MEASURES),
    is_not_delayed_by_who_allocates_without_end: Bare + Filesystem + Alone(MEASURES),
}

const MEASURES: &str = "it measures times";
const TENANTS: usize = 4;

/// The ids of that many volumes.
fn ids() -> Vec<String> {
    (0..TENANTS).map(|number| format!("vol-{number}")).collect()
}

/// What a client does that is told to come again.
fn ask_or_wait(helper: &HelperClient, request: &Request) -> Result<()> {
    match helper.request(request)? {
        Ok(_) => Ok(()),
        Err(error) if error.kind == ErrorKind::Busy => {
            std::thread::sleep(Duration::from_millis(100));
            Ok(())
        }
        Err(error) => bail!("{}: {error}", request.name()),
    }
}

/// With CAP_SYS_ADMIN in a pod. Then the claims are expanded.
fn is_not_delayed_by_who_freezes_filesystems_and_grows_them(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    let (helper, ids) = (rig.started_helper()?, ids());
    for id in &ids {
        helper.ask_all([create(id, filesystem_spec(SIZE)), mount_filesystem(id), bind(id, id)])?;
    }
    is_not_delayed(rig, |measure| {
        let frozen = ids.iter().map(|id| Frozen::freeze(&rig.target(id))).collect::<Result<Vec<_>>>()?;
        let grow = |number: usize, client: &HelperClient| ask_or_wait(client, &grow_filesystem(&ids[number], 2 * SIZE));
        let measured = beside_clients(rig, TENANTS, grow, measure);
        drop(frozen);
        measured
    })?;
    for id in &ids {
        helper.ask_all([unbind(id, id), unmount_filesystem(id), delete(id)])?;
    }
    check_detached(rig)
}

/// Nobody can tell a mounter that is stopped from a kernel that goes through what a tenant has left.
fn is_not_delayed_by_mounts_that_do_not_end(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    let (helper, ids) = (rig.started_helper()?, ids());
    helper.ask_all(ids.iter().map(|id| create(id, filesystem_spec(SIZE))))?;
    let mounter = mounter_of(rig.helper_pid()?)?;
    is_not_delayed(rig, |measure| {
        processes::signal(mounter, Signal::STOP)?;
        let mount = |id: &String| {
            let client = rig.helper()?;
            client.send(&encode(&mount_filesystem(id))?)?;
            Ok(client)
        };
        let waiting = ids.iter().map(mount).collect::<Result<Vec<_>>>();
        let measured = measure();
        processes::signal(mounter, Signal::CONT)?;
        for client in waiting? {
            ensure!(client.is_answered(rig.patience(Duration::from_secs(30)))?, "no answer");
        }
        helper.ask_all(ids.iter().flat_map(|id| [mount_filesystem(id), unmount_filesystem(id)]))?;
        measured
    })?;
    helper.ask_all(ids.iter().map(|id| delete(id)))?;
    check_detached(rig)
}

/// Deletes a volume, and waits until its room is free again.
fn delete_for_good(helper: &HelperClient, pool: &Path, id: &str) -> Result<()> {
    helper.ask_patiently(&delete(id))?;
    until(patience(Duration::from_secs(60)), || {
        for entry in fs::read_dir(pool)? {
            ensure!(!entry?.file_name().to_string_lossy().ends_with(&format!(".{id}")), "{id} is still being emptied");
        }
        Ok(())
    })
}

/// Measures beside clients that make and delete a volume each, again and again.
fn beside_short_lives(rig: &mut Rig, make: impl Fn(&HelperClient, &str, &Path) -> Result<()> + Sync) -> Result<()> {
    make_pool(rig, 1)?;
    rig.start_helper()?;
    let (ids, pool) = (ids(), rig.pool().directory.clone());
    let live = |number: usize, client: &HelperClient| {
        make(client, &ids[number], &pool)?;
        delete_for_good(client, &pool, &ids[number])
    };
    is_not_delayed(rig, |measure| beside_clients(rig, TENANTS, live, measure))?;
    rig.eventually(60, || rig.pool().holds(&[]))
}

fn is_not_delayed_by_who_fills_and_deletes_volumes(rig: &mut Rig) -> Result<()> {
    beside_short_lives(rig, |client, id, pool| {
        client.ask_patiently(&create(id, directory_spec(1 << 20)))?;
        (0..500).try_for_each(|file| File::create(pool.join(id).join("data").join(file.to_string())).map(drop))?;
        Ok(())
    })
}

fn is_not_delayed_by_who_allocates_without_end(rig: &mut Rig) -> Result<()> {
    // A filesystem may free the blocks of what was deleted a moment later.
    let make = |client: &HelperClient, id: &str, _: &Path| {
        let create = create(id, image_spec(64 << 20));
        until(patience(Duration::from_secs(60)), || client.ask_patiently(&create).map(drop))
    };
    beside_short_lives(rig, make)
}
