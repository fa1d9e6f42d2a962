//! Many snapshots, and snapshots in many pieces: what each request takes is bounded, and holds up nobody else.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use bulkhead_protocol::{Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes::resident;
use bulkhead_tests::pace::patience;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::RunOptions;
use rustix::fs::XattrFlags;

use super::sharing::sharing;
use super::{ranges, take};

cases! {
    nineteen_thousand_snapshots_are_served: Bare + Xfs + Long + Alone("it measures times"),
    a_copy_of_many_pieces_holds_up_nobody_else: Bare + Xfs + Long + Alone("it measures times"),
    twenty_clients_take_snapshots_at_once: Bare + Xfs,
}

const MIB: u64 = 1 << 20;

/// Returns how long something takes.
fn timed<T>(what: &str, act: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let begun = Instant::now();
    let done = act()?;
    eprintln!("{what}: {:?}", begun.elapsed());
    Ok((done, begun.elapsed()))
}

/// Makes more of a snapshot, as the helper would, while it does not run.
fn multiply(pool: &Pool, snapshot: &str, number: usize) -> Result<()> {
    let from = pool.volume(snapshot);
    let attribute = |name: &str| -> Result<Vec<u8>> {
        let mut value = vec![0; 512];
        let length = rustix::fs::getxattr(&from, name, &mut value[..])?;
        value.truncate(length);
        Ok(value)
    };
    let names = ["trusted.bulkhead", "trusted.bulkhead.origin"];
    let values = [attribute(names[0])?, attribute(names[1])?];
    let original = File::open(from.join("image"))?;
    for number in 0..number {
        let to = pool.volume(&format!("many-{number:05}"));
        fs::create_dir(&to)?;
        rustix::fs::chmod(&to, rustix::fs::Mode::RWXU)?;
        for (name, value) in names.iter().zip(&values) {
            rustix::fs::setxattr(&to, *name, value, XattrFlags::empty())?;
        }
        rustix::fs::ioctl_ficlone(File::create_new(to.join("image"))?, &original)?;
    }
    Ok(())
}

fn nineteen_thousand_snapshots_are_served(rig: &mut Rig) -> Result<()> {
    const NUMBER: usize = 19_000;
    let helper = rig.started_helper()?;
    helper.ask_all(["vol-a", "vol-b"].map(|id| create(id, image_spec(MIB))))?;
    take(&helper, "vol-a", "snap-1")?;
    eprintln!("{} bytes", resident(rig.helper_pid()?)?);
    rig.stop_helper()?;
    multiply(&rig.pool().clone(), "snap-1", NUMBER)?;
    let (_, start) = timed("start", || rig.start_helper())?;
    eprintln!("{} bytes", resident(rig.helper_pid()?)?);
    let helper = rig.helper()?;
    let pool = || "default".parse();
    let (_, status) = timed("status", || helper.pool_status("default"))?;
    let (counts, count) = timed("counts", || helper.ask(&Request::PoolCounts { pool: pool()? }))?;
    ensure!(matches!(counts, Reply::Counts { snapshots: 19_001, .. }), "{counts:?}");
    let of = |of: Option<&str>| Request::ListSnapshots { after: None, of: of.map(volume), limit: 100 };
    let (_, page) = timed("a page", || helper.ask(&of(None)))?;
    let (_, none) = timed("a page of none", || helper.ask(&of(Some("vol-b"))))?;
    let (_, volumes) = timed("a page of volumes", || helper.ask(&Request::List { after: None, limit: 16 }))?;
    let (all, _) = timed("all pages", || {
        let (mut all, mut after) = (0, None);
        loop {
            let request = Request::ListSnapshots { after, of: Some(volume("vol-a")), limit: 100 };
            let Reply::Snapshots(page) = helper.ask(&request)? else { bail!("no page") };
            let Some(last) = page.as_slice().last() else { return Ok(all) };
            after = Some(last.snapshot.clone());
            all += page.as_slice().len();
        }
    })?;
    ensure!(all == NUMBER + 1, "{all}");
    timed("a snapshot", || take(&helper, "vol-a", "snap-2"))?;
    // A client that asks for nothing else keeps nobody waiting.
    let is_over = AtomicBool::new(false);
    let socket = rig.helper_socket();
    let slowest = std::thread::scope(|scope| -> Result<Duration> {
        let floods: Vec<_> = (0..12)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let own = HelperClient::welcomed(&socket)?;
                    while !is_over.load(Relaxed) {
                        own.ask(&of(Some("vol-b")))?;
                    }
                    Ok(())
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let begun = Instant::now();
            helper.ask(&Request::Usage { volume: volume("vol-a"), target: None })?;
            slowest = slowest.max(begun.elapsed());
        }
        is_over.store(true, Relaxed);
        for flood in floods {
            flood.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(slowest)
    })?;
    eprintln!("the slowest request beside twelve that list: {slowest:?}");
    for (what, took, most) in [
        ("start", start, 10_000),
        ("status", status, 500),
        ("counts", count, 200),
        ("page", page, 100),
        ("page of none", none, 100),
        ("volumes", volumes, 100),
        ("flooded", slowest, 1000),
    ] {
        ensure!(took < rig.patience(Duration::from_millis(most)), "{what} takes {took:?}");
    }
    timed("deletion", || {
        for number in 0..NUMBER {
            helper.ask(&delete_snapshot(&format!("many-{number:05}")))?;
            if number == 999 {
                break;
            }
        }
        Ok(())
    })?;
    rig.stop_helper()?;
    for number in 1000..NUMBER {
        fs::remove_dir_all(rig.pool().volume(&format!("many-{number:05}")))?;
    }
    rig.start_helper()
}

/// Does something again and again, and returns how long the slowest took.
fn slowest_until(is_over: &AtomicBool, act: impl Fn() -> Result<()>) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    while !is_over.load(Relaxed) {
        let begun = Instant::now();
        act()?;
        slowest = slowest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(slowest)
}

fn a_copy_of_many_pieces_holds_up_nobody_else(rig: &mut Rig) -> Result<()> {
    const PIECES: u64 = 195_000;
    const SIZE: u64 = PIECES * 8192;
    let run_options = RunOptions { pool_mebibytes: 4096, ..rig.run_options.clone() };
    let templates = rig.work().join("templates");
    fs::create_dir_all(&templates)?;
    let pool = Pool::make(&run_options, &templates, &rig.work().join("pools/default"), "default")?;
    rig.pools.push(pool);
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", sparse_spec(SIZE)), create("vol-b", image_spec(16 * MIB))])?;
    helper.ask_all([attach("vol-b"), make_device("vol-b", "vol-b")])?;
    let file = File::options().write(true).open(rig.pool().image("vol-a"))?;
    for piece in 0..PIECES {
        file.write_all_at(&[1; 4096], piece * 8192)?;
    }
    file.sync_all()?;
    let (is_over, device) = (AtomicBool::new(false), File::options().write(true).open(rig.target("vol-b"))?);
    let socket = rig.helper_socket();
    let (write, status, other) = std::thread::scope(|scope| -> Result<_> {
        let is_over = &is_over;
        let writer = scope.spawn(move || {
            slowest_until(is_over, || {
                device.write_all_at(&[3; 4096], 0)?;
                Ok(device.sync_all()?)
            })
        });
        let socket = &socket;
        let asking = scope.spawn(move || {
            let own = HelperClient::welcomed(socket)?;
            slowest_until(is_over, || own.pool_status("default").map(drop))
        });
        let making = scope.spawn(move || {
            let own = HelperClient::welcomed(socket)?;
            slowest_until(is_over, || {
                own.ask(&create("vol-c", image_spec(MIB)))?;
                own.ask_patiently(&delete("vol-c")).map(drop)
            })
        });
        std::thread::sleep(Duration::from_secs(1));
        let work = || -> Result<()> {
            timed("a snapshot", || take(&helper, "vol-a", "snap-1"))?;
            let ((_, shared, requests), took) = timed("what is shared", || sharing(&helper, "vol-a"))?;
            ensure!(shared == PIECES * 4096 && requests > 1, "{shared} in {requests} requests");
            ensure!(took < rig.patience(Duration::from_secs(2)), "what is shared takes {took:?}");
            for piece in (0..PIECES).step_by(7) {
                file.write_all_at(&[2; 4096], piece * 8192)?;
            }
            timed("a second one", || take(&helper, "vol-a", "snap-2"))?;
            let (found, _) = timed("all of the difference", || ranges(&helper, "snap-2", Some("snap-1")))?;
            ensure!(found.len() as u64 == PIECES.div_ceil(7), "{} ranges", found.len());
            timed("all of the data", || ranges(&helper, "snap-2", None))?;
            let one = Request::Delta { snapshot: volume("snap-2"), base: Some(volume("snap-2")), from: 0 };
            timed("one request without ranges", || helper.ask(&one))?;
            timed("deletion", || {
                helper.ask(&delete_snapshot("snap-1"))?;
                bulkhead_tests::wait::until(patience(Duration::from_secs(60)), || {
                    ensure!(helper.pool_status("default")?.emptying <= 1, "it is being emptied");
                    Ok(())
                })
            })?;
            Ok(())
        };
        let worked = work();
        is_over.store(true, Relaxed);
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Duration>>| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        let times = (join(writer)?, join(asking)?, join(making)?);
        worked?;
        Ok(times)
    })?;
    eprintln!(
        "slowest: write and sync of another volume {write:?}, status {status:?}, creation and deletion {other:?}"
    );
    drop(file);
    Ok(())
}

/// All of one volume, of which there can be one at a time; and a client that wants something else is served meanwhile.
fn twenty_clients_take_snapshots_at_once(rig: &mut Rig) -> Result<()> {
    let helper = rig.started_helper()?;
    helper.ask_all(["vol-a", "vol-b"].map(|id| create(id, image_spec(4 * MIB))))?;
    let (is_over, socket) = (AtomicBool::new(false), rig.helper_socket());
    let taken = std::thread::scope(|scope| -> Result<usize> {
        let clients: Vec<_> = (0..20)
            .map(|number| {
                let (is_over, socket) = (&is_over, &socket);
                scope.spawn(move || -> Result<usize> {
                    let (own, id) = (HelperClient::welcomed(socket)?, format!("snap-{number:02}"));
                    let mut taken = 0;
                    while !is_over.load(Relaxed) {
                        own.ask_patiently(&create_snapshot("vol-a", &id))?;
                        own.ask_patiently(&delete_snapshot(&id))?;
                        taken += 1;
                    }
                    Ok(taken)
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            let begun = Instant::now();
            helper.ask_patiently(&create_snapshot("vol-b", "snap-b"))?;
            helper.ask_patiently(&delete_snapshot("snap-b"))?;
            slowest = slowest.max(begun.elapsed());
        }
        is_over.store(true, Relaxed);
        let taken = clients.into_iter().map(|client| client.join().map_err(|_| anyhow!("a client panicked"))?);
        let taken: Result<Vec<usize>> = taken.collect();
        eprintln!("the slowest snapshot of another volume and its deletion: {slowest:?}, {taken:?}");
        ensure!(slowest < rig.patience(Duration::from_secs(5)), "{slowest:?}");
        Ok(taken?.into_iter().sum())
    })?;
    ensure!(taken > 20, "{taken}");
    Ok(())
}
