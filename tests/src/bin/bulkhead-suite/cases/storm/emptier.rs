//! The emptier of a pool, and a tenant who keeps it busy.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;
use rustix::fs::{Mode, OFlags, openat};

cases! {
    a_tenant_who_keeps_the_emptier_busy_does_not_keep_it_from_what_is_deleted_in_place: Bare + Slow,
}

const SIZE: u64 = 1 << 20;

fn a_tenant_who_keeps_the_emptier_busy_does_not_keep_it_from_what_is_deleted_in_place(rig: &mut Rig) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.start()?;
    let helper = rig.helper()?;
    helper.ask_all([create("busy", directory_spec(SIZE)), create("victim", directory_spec(SIZE))])?;
    helper.ask_all([bind("busy", "b"), unbind("busy", "b")])?;
    // What a container that was left behind still has mounted in a namespace of its own.
    let data = File::open(rig.pool().volume("busy").join("data"))?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        for thread in 0..2 {
            let (data, done) = (&data, &done);
            scope.spawn(move || {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                for number in 0_u64.. {
                    if done.load(Relaxed) {
                        break;
                    }
                    let _ = openat(data, format!("{thread}-{number}"), flags, Mode::RUSR);
                }
            });
        }
        let outcome = (|| {
            // The emptier has looked for what is deleted in place, at the start.
            rig.eventually(5, || {
                ensure!(std::fs::read_dir(rig.pool().volume("busy").join("data"))?.count() > 2000, "too few");
                Ok(())
            })?;
            helper.ask(&delete("busy"))?;
            std::thread::sleep(Duration::from_millis(500));
            ensure!(rig.pool().entries()?.iter().any(|name| name.starts_with(".deleted")), "it was not busy");
            // A full pool has no block for the longer name.
            let process = rig.helper_pid()?;
            let full = Tracer::fail(process, "renameat2", "ENOSPC", "1")?;
            helper.ask(&delete("victim"))?;
            drop(full);
            let entries = rig.pool().entries()?;
            ensure!(!entries.iter().any(|name| name.ends_with(".victim")), "it was renamed: {entries:?}");
            rig.eventually(30, || {
                ensure!(!rig.pool().volume("victim").exists(), "it is not emptied: {:?}", rig.pool().entries()?);
                Ok(())
            })
            .context("a neighbour keeps the emptier busy")
        })();
        done.store(true, Relaxed);
        outcome
    })
}
