//! A filesystem shuts down at a random moment, while requests are being carried out: what was answered as done is there
//! after the repair, and nothing more is answered as done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bulkhead_protocol::{Inodes, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_anew, run};
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use bulkhead_tests::wait;

cases! {
    an_xfs_that_shuts_down_at_any_moment: Bare + Long,
    an_ext4_that_shuts_down_at_any_moment: Bare + Long,
}

const SIZE: u64 = 1 << 20;

fn an_xfs_that_shuts_down_at_any_moment(rig: &mut Rig) -> Result<()> {
    rounds(rig, PoolFilesystem::Xfs)
}

fn an_ext4_that_shuts_down_at_any_moment(rig: &mut Rig) -> Result<()> {
    rounds(rig, PoolFilesystem::Ext4)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Unsure,
    Absent,
    /// At least this size.
    Made(u64),
}

type Book = BTreeMap<String, Known>;

fn rounds(rig: &mut Rig, filesystem: PoolFilesystem) -> Result<()> {
    let run_options = RunOptions { pool_fs: filesystem, ..rig.run_options.clone() };
    let seed = std::env::var("BULKHEAD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let number = std::env::var("STORM_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let mut random = Random::new(seed);
    let (mut certain, mut late) = (0, 0);
    for round in 0..number {
        let directory = rig.work().join(format!("pools/round{round}"));
        rig.pools = vec![Pool::make(&run_options, rig.templates(), &directory, "default")?];
        rig.start_helper()?;
        let (book, done_late) = work(rig, &directory, &mut random)?;
        late += done_late;
        rig.kill_helper()?;
        let patience = rig.patience(Duration::from_secs(15));
        mount_anew(&run_options, &directory)?;
        let helper = rig.started_helper()?;
        let found = helper.sizes()?;
        for (id, known) in &book {
            let now = found.get(id);
            certain += usize::from(*known != Known::Unsure);
            match known {
                Known::Unsure => {}
                Known::Absent => ensure!(now.is_none(), "round {round}: {id} is back"),
                Known::Made(size) => {
                    ensure!(now.is_some_and(|now| now >= size), "round {round}: {id} {known:?} {now:?}")
                }
            }
        }
        helper.ask_all(found.keys().map(|id| delete(id)))?;
        wait::until(patience, || rig.pool().holds(&[]))?;
        rig.kill_helper()?;
        wait::until(patience, || mounts::unmount_all(&directory))?;
        std::fs::remove_file(directory.with_extension("disk"))?;
    }
    rig.pools.clear();
    rig.start_helper()?;
    println!("STORM {number} rounds, {certain} certain states, {late} changes answered as done after the end");
    ensure!(late == 0, "{late} changes were answered as done after the end of the disk");
    Ok(())
}

fn work(rig: &Rig, directory: &PathBuf, random: &mut Random) -> Result<(Book, usize)> {
    let (dead, end) = (AtomicBool::new(false), AtomicBool::new(false));
    let delay = Duration::from_millis(20 + random.below(400) as u64);
    let flushes = random.below(3) == 0;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_usize)
            .map(|worker| {
                let (dead, end, socket, mut random) =
                    (&dead, &end, rig.helper_socket(), Random::new(random.below(usize::MAX) as u64));
                scope.spawn(move || -> Result<(Book, usize)> {
                    let (mut book, mut late) = (Book::new(), 0);
                    let helper = HelperClient::welcomed(&socket)?;
                    while !end.load(SeqCst) {
                        let id = format!("v-{worker}-{}", random.below(6));
                        let known = book.get(&id).copied().unwrap_or(Known::Absent);
                        let block = id.ends_with(['1', '3', '5']);
                        let (request, then) = match known {
                            Known::Absent | Known::Unsure => {
                                let spec = if block { image_spec(SIZE) } else { directory_spec(SIZE) };
                                (create(&id, spec), Known::Made(SIZE))
                            }
                            Known::Made(size) if random.below(2) == 0 && size < 4 * SIZE => {
                                let size = size + SIZE;
                                let request = if block {
                                    Request::GrowImage { volume: volume(&id), size: bytes(size) }
                                } else {
                                    Request::SetQuota {
                                        volume: volume(&id),
                                        size: bytes(size),
                                        inodes: Inodes::try_from(4096)?,
                                    }
                                };
                                (request, Known::Made(size))
                            }
                            Known::Made(_) => (delete(&id), Known::Absent),
                        };
                        let was_dead = dead.load(SeqCst);
                        let answer = helper.request(&request)?;
                        match answer {
                            // A creation that is repeated finds what is there.
                            Ok(Reply::Size(size)) if known == Known::Unsure => {
                                _ = book.insert(id, Known::Made(size.get()))
                            }
                            Ok(_) => {
                                if was_dead {
                                    late += 1;
                                    println!("done after the end: {request:?}, which was {known:?}");
                                }
                                book.insert(id, then);
                            }
                            // Nothing reaches the disk any more.
                            Err(_) if was_dead => {}
                            // An expansion that has failed has left at least the old size.
                            Err(_) if matches!((known, then), (Known::Made(_), Known::Made(_))) => {}
                            Err(_) => drop(book.insert(id, Known::Unsure)),
                        }
                    }
                    Ok((book, late))
                })
            })
            .collect();
        std::thread::sleep(delay);
        let mut shutdown = Command::new("xfs_io");
        shutdown.args(["-x", "-c", if flushes { "shutdown -f" } else { "shutdown" }]).arg(directory);
        let shut = run(&mut shutdown);
        dead.store(true, SeqCst);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(700) {
            std::thread::sleep(Duration::from_millis(10));
        }
        end.store(true, SeqCst);
        let (mut all, mut late) = (Book::new(), 0);
        for worker in workers {
            let (book, more) = worker.join().map_err(|_| anyhow!("a worker panicked"))??;
            all.extend(book);
            late += more;
        }
        shut.map(|()| (all, late))
    })
}
