//! A pool without a single free block, in which somebody takes each block that is freed: whatever is asked for meanwhile
//! is done, or refused for want of room.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_protocol::{ErrorKind, Inodes, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pace::patience;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

cases! {
    anything_at_all_in_a_full_pool: OwnPool + Long,
}

const MIB: u64 = 1 << 20;

fn steal(file: &File, done: &AtomicBool) {
    let mut end = file.metadata().map_or(0, |found| found.len());
    while !done.load(Relaxed) {
        let mut step = 1 << 28;
        while step >= 4096 {
            match fallocate(file, FallocateFlags::empty(), end, step) {
                Ok(()) => end += step,
                Err(_) => step /= 2,
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn anything_at_all_in_a_full_pool(rig: &mut Rig) -> Result<()> {
    let mut random = Random::new(std::env::var("BULKHEAD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(3));
    let pool = rig.pool().directory.clone();
    let ids: Vec<String> = (0..24).map(|number| format!("vol-{number}")).collect();
    let is_block = |id: &str| id.ends_with(['0', '3', '6', '9']);
    let make = |id: &str| create(id, if is_block(id) { image_spec(2 * MIB) } else { directory_spec(MIB) });
    {
        let helper = rig.helper()?;
        for id in &ids {
            helper.ask(&make(id))?;
            if !is_block(id) {
                for number in 0..20 {
                    fs::write(rig.pool().volume(id).join("data").join(format!("f{number}")), vec![1; 5000])?;
                }
            }
        }
    }
    let filler = File::create_new(pool.join("Filler"))?;
    let done = AtomicBool::new(false);
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    let outcome = std::thread::scope(|scope| {
        let thief = scope.spawn(|| steal(&filler, &done));
        let outcome = (|| -> Result<()> {
            wait::until(patience(Duration::from_secs(30)), || {
                ensure!(statvfs(&pool)?.f_bavail < 64, "the pool is not full");
                Ok(())
            })?;
            let begun = Instant::now();
            while begun.elapsed() < patience(Duration::from_secs(60)) {
                let helper = rig.helper()?;
                let id = &ids[random.below(ids.len())];
                let requests: Vec<Request> = match random.below(8) {
                    0 => vec![delete(id)],
                    1 | 2 => vec![make(id)],
                    3 if is_block(id) => vec![attach(id), make_device(id, id), remove_device(id, id), detach(id)],
                    3 => vec![bind(id, id), unbind(id, id)],
                    4 if is_block(id) => vec![Request::GrowImage { volume: volume(id), size: bytes(3 * MIB) }],
                    4 | 5 if !is_block(id) => {
                        let size = (1 + random.below(5000)) as u64 * MIB;
                        vec![Request::SetQuota {
                            volume: volume(id),
                            size: bytes(size),
                            inodes: Inodes::try_from(4096)?,
                        }]
                    }
                    6 => vec![Request::PoolStatus { pool: "default".parse()? }],
                    7 if random.below(6) == 0 => {
                        rig.restart_helper().context("restart in a full pool")?;
                        continue;
                    }
                    _ => vec![Request::Usage { volume: volume(id), target: None }],
                };
                for request in requests {
                    let name = format!("{request:?}").split(' ').next().unwrap_or_default().to_owned();
                    let answer = helper.request(&request)?;
                    let how = match &answer {
                        Ok(_) => "ok".to_owned(),
                        Err(error) => format!("{:?}", error.kind).split(' ').next().unwrap_or_default().to_owned(),
                    };
                    *counts.entry(format!("{name} {how}")).or_default() += 1;
                    if let Err(error) = answer {
                        let allowed = matches!(
                            error.kind,
                            ErrorKind::NoSpace
                                | ErrorKind::NoRoom { .. }
                                | ErrorKind::Busy
                                | ErrorKind::NotFound
                                | ErrorKind::AlreadyExists
                        );
                        ensure!(allowed, "{request:?}: {error:?}");
                        ensure!(
                            !matches!(request, Request::Delete { .. }) || error.kind == ErrorKind::Busy,
                            "{request:?}: {error:?}"
                        );
                        break;
                    }
                }
            }
            for id in &ids {
                wait::until(patience(Duration::from_secs(10)), || rig.helper()?.ask(&delete(id)).map(drop))?;
            }
            wait::until(patience(Duration::from_secs(30)), || {
                let left = rig.pool().entries()?;
                ensure!(left == ["Filler"], "{left:?}");
                let Reply::Pool(status) = rig.helper()?.ask(&Request::PoolStatus { pool: "default".parse()? })? else {
                    anyhow::bail!("no status")
                };
                ensure!(status.promised == 0 && status.emptying == 0, "{status:?}");
                Ok(())
            })
        })();
        done.store(true, Relaxed);
        thief.join().map_err(|_| anyhow!("the thief panicked"))?;
        outcome
    });
    fs::remove_file(pool.join("Filler"))?;
    println!("STORM {counts:?}");
    outcome
}
