//! A log that is read slowly or not at all: whatever else floods it, no change goes unrecorded, and the helper starts.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, HIGHEST_VERSION, Hello, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;

cases! {
    a_flood_of_reads_hides_no_deletion_in_a_log_that_is_read_slowly: Bare + Host,
    a_helper_starts_with_a_log_that_is_full_already: Bare,
    a_helper_that_has_something_to_say_starts_with_a_log_that_is_full_already: Bare,
}

const SIZE: u64 = 1 << 20;
const DELETIONS: usize = 60;
/// More lines than a pipe and the helper have room for.
const FLOOD: usize = 4000;

/// Makes the helper log to a pipe from its next start.
fn pipe(rig: &mut Rig) -> Result<BufReader<File>> {
    let (reader, writer) = std::io::pipe()?;
    rig.stderr = Some(writer.into());
    Ok(BufReader::new(OwnedFd::from(reader).into()))
}

/// Fills a pipe through an open file description of its own: O_NONBLOCK on the log's would affect the helper.
fn fill(pipe: &File) -> Result<()> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut pipe = File::options().write(true).custom_flags(flags).open(path)?;
    for chunk in [4096, 1] {
        while pipe.write(&vec![b'\n'; chunk]).is_ok() {}
    }
    Ok(())
}

/// Deletes a volume, as often as there is no place in the log.
fn insist(client: &HelperClient, id: &str, limit: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match client.request(&delete(id))? {
            Err(error) if error.kind == ErrorKind::Busy && begun.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            answer => return answer.map(drop).with_context(|| format!("delete {id}")),
        }
    }
}

fn a_flood_of_reads_hides_no_deletion_in_a_log_that_is_read_slowly(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let mut log = pipe(rig)?;
    rig.start_helper()?;
    rig.stderr = None;
    let (client, floods) = (rig.helper()?, [rig.helper()?, rig.helper()?]);
    let ids: Vec<String> = (0..DELETIONS).map(|number| format!("vol-{number:02}")).collect();
    let (done, patience) = (AtomicBool::new(false), rig.patience(Duration::from_secs(10)));
    let (answered, read, is_flooded) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let logged = std::thread::scope(|scope| -> Result<BTreeSet<String>> {
        let reader = scope.spawn(|| -> Result<BTreeSet<String>> {
            let (mut found, mut line, mut is_said) = (BTreeSet::new(), String::new(), false);
            while log.read_line(&mut line)? > 0 {
                let seen = read.fetch_add(1, Relaxed);
                if line.contains("audit operation=delete ") && line.contains(" outcome=ok ") {
                    found.extend(line.split(' ').find_map(|word| word.strip_prefix("volume=")).map(str::to_owned));
                }
                if line.contains("log lines are missing") {
                    is_said = true;
                    ensure!(line.trim_end().ends_with(" others=0"), "{line}");
                }
                // The last line that this test causes.
                if line.contains("volume=the-last") {
                    break;
                }
                line.clear();
                if !is_flooded.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                } else if !done.load(Relaxed) && seen % 4 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            ensure!(is_said, "the reads do not flood the log");
            Ok(found)
        });
        let outcome = (|| -> Result<()> {
            ids.iter().try_for_each(|id| client.ask(&create(id, directory_spec(SIZE))).map(drop))?;
            for (number, flood) in floods.iter().enumerate() {
                let (done, answered) = (&done, &answered);
                scope.spawn(move || -> Result<()> {
                    let usage = Request::Usage { volume: volume(own("vol-x")), target: None };
                    let status = Request::PoolStatus { pool: "default".parse()? };
                    while !done.load(Relaxed) {
                        let _ = flood.request(if number == 0 { &status } else { &usage })?;
                        answered.fetch_add(1, Relaxed);
                    }
                    Ok(())
                });
            }
            let begun = Instant::now();
            while answered.load(Relaxed) < read.load(Relaxed) + FLOOD {
                ensure!(begun.elapsed() < 6 * patience, "{answered:?} reads are answered");
                std::thread::sleep(Duration::from_millis(1));
            }
            is_flooded.store(true, Relaxed);
            ids.iter().try_for_each(|id| insist(&client, id, patience))
        })();
        is_flooded.store(true, Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        done.store(true, Relaxed);
        let ended = insist(&client, "the-last", patience);
        let found = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        outcome.and(ended).and(found)
    })?;
    let missing: Vec<&String> = ids.iter().filter(|id| !logged.contains(*id)).collect();
    ensure!(missing.is_empty(), "{} of {DELETIONS} deletions are not in the log: {missing:?}", missing.len());
    Ok(())
}

/// Several times, because it depends on which of its threads is first.
fn a_helper_starts_with_a_log_that_is_full_already(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    (0..12).try_for_each(|_| full(rig))?;
    rig.start_helper()
}

/// A line at the start has no thread yet that writes it.
fn a_helper_that_has_something_to_say_starts_with_a_log_that_is_full_already(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "fast"])?;
    mounts::unmount_all(&rig.pools[1].directory)?;
    std::fs::write(rig.pool().directory.join("Foreign"), "")?;
    full(rig)?;
    std::fs::remove_file(rig.pool().directory.join("Foreign"))?;
    rig.pools.truncate(1);
    rig.start_helper()
}

fn full(rig: &mut Rig) -> Result<()> {
    let mut log = pipe(rig)?;
    fill(log.get_ref())?;
    let (begun, patience) = (Instant::now(), rig.patience(Duration::from_secs(5)));
    let writer = rig.stderr.take();
    let mut started = Daemon::start_logging_to("full", &mut rig.helper_command()?, &rig.logs(), writer)?;
    started.wait_until(patience, || HelperClient::connect(&rig.helper_socket()).map(drop))?;
    let helper = HelperClient::connect(&rig.helper_socket())?;
    helper.send(&encode(&Hello::new(HIGHEST_VERSION))?)?;
    ensure!(helper.is_answered(patience)?, "it listens, and does not serve before its log is read");
    helper.receive()?;
    for request in [
        create(own("vol-a"), directory_spec(SIZE)),
        bind(own("vol-a"), "a"),
        unbind(own("vol-a"), "a"),
        delete(own("vol-a")),
    ] {
        helper.send(&encode(&request)?)?;
        ensure!(helper.is_answered(patience)?, "{} is not answered before the log is read", request.name());
        let answer: Response = decode(&helper.receive()?.context("the connection is closed")?)?;
        answer.with_context(|| request.name())?;
    }
    ensure!(begun.elapsed() < 2 * patience, "it took {:?}", begun.elapsed());
    // Once it is read, everything is there.
    let mut line = String::new();
    while !line.contains(&format!("audit operation=delete volume={}", own("vol-a"))) {
        line.clear();
        ensure!(log.read_line(&mut line)? > 0, "the log has ended");
    }
    drop(log);
    started.kill()
}
