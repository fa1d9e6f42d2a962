//! A tenant keeps writing to a pool that has no free block left: volumes are deleted and the pool is emptied all the
//! same, also by a helper that was started anew meanwhile.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

cases! {
    a_tenant_that_keeps_writing_keeps_nothing_from_being_deleted: Filesystem + OwnPool,
    block_volumes_are_attached_and_published_in_a_full_pool: Filesystem + OwnPool,
}

const MIB: u64 = 1 << 20;

/// Takes every block that is free, this often, unless it is done before.
fn write(file: &File, done: &AtomicBool, times: usize) -> Result<()> {
    let mut end = 0;
    for _ in (0..times).take_while(|_| !done.load(Relaxed)) {
        let mut step = 1 << 28;
        while step >= 4096 {
            match fallocate(file, FallocateFlags::empty(), end, step) {
                Ok(()) => end += step,
                Err(_) => step /= 2,
            }
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn a_tenant_that_keeps_writing_keeps_nothing_from_being_deleted(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    let pool = rig.pool().directory.clone();
    helper.ask_all([create("tenant", directory_spec(64 * MIB)), bind("tenant", "t")])?;
    let ids: Vec<String> = (0..12).map(|number| format!("vol-{number}")).collect();
    for (number, id) in ids.iter().enumerate() {
        helper.ask(&create(id, if number % 3 == 0 { image_spec(8 * MIB) } else { directory_spec(MIB) }))?;
        if number % 3 != 0 {
            let data = rig.pool().volume(id).join("data");
            for name in 0..40 {
                fs::create_dir(data.join(format!("directory-with-a-long-name-{name}")))?;
                fs::write(data.join(format!("directory-with-a-long-name-{name}/file")), vec![1; 9000])?;
            }
        }
    }
    // In the virtual machine the tenant's quota would end this: there, an administrator's file takes the room.
    let file = File::create_new(pool.join("Filler"))?;
    let done = AtomicBool::new(false);
    let patience = rig.patience(Duration::from_secs(30));
    let emptied = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&file, &done, usize::MAX));
        let outcome = (|| -> Result<()> {
            wait::until(patience, || {
                ensure!(statvfs(&pool)?.f_bavail < 64, "the pool is not full");
                Ok(())
            })?;
            for (number, id) in ids.iter().enumerate() {
                rig.helper()?.ask(&delete(id)).context("in a full pool")?;

                if number % 5 == 4 {
                    rig.restart_helper()?;
                }
            }
            wait::until(patience, || rig.pool().holds(&["Filler", "tenant"]))?;
            // A start in a full pool, and what is published there.
            let helper = rig.restarted_helper()?;
            helper.ask_all([unbind("tenant", "t"), delete("tenant")])?;
            wait::until(patience, || rig.pool().holds(&["Filler"]))
        })();
        done.store(true, Relaxed);
        let written = writer.join().map_err(|_| anyhow!("the writer panicked"));
        outcome.and_then(|()| written?)
    });
    fs::remove_file(pool.join("Filler"))?;
    emptied
}

/// What is noted about loop devices needs no block, however many have been used.
fn block_volumes_are_attached_and_published_in_a_full_pool(rig: &mut Rig) -> Result<()> {
    let pool = rig.pool().directory.clone();
    rig.helper()?.ask(&create("vol-a", image_spec(MIB)))?;
    let file = File::create_new(pool.join("Filler"))?;
    // Once over the pool, down to the last block.
    write(&file, &AtomicBool::new(false), 1)?;
    let outcome = (|| -> Result<()> {
        for round in 0..40 {
            let helper = rig.helper()?;
            let through = [attach("vol-a"), make_device("vol-a", "a"), remove_device("vol-a", "a"), detach("vol-a")];
            helper.ask_all(through).with_context(|| format!("round {round}"))?;
            if round % 16 == 15 {
                rig.restart_helper()?;
            }
        }
        Ok(())
    })();
    fs::remove_file(pool.join("Filler"))?;
    outcome?;
    Ok(())
}
