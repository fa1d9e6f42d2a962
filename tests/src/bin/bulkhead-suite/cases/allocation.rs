//! Allocating sparse images: in parts, however many holes a pod has made, and never beyond what the pool keeps in reserve.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind, Reply, Request, Response, VolumeKind, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;
use rustix::fs::FallocateFlags;

cases! {
    allocations_leave_the_reserve_alone: Bare,
    a_long_allocation_is_done_in_parts: Bare + Slow,
    only_what_is_sparse_and_whole_is_allocated: Bare,
    limits_that_are_being_changed_are_nobody_elses: Bare + Quota,
}

const MIB: u64 = 1 << 20;
const DATA: &[u8; 4096] = &[0x5a; 4096];

fn allocate(id: &str) -> Request {
    Request::Allocate { volume: volume(id) }
}

fn is_sparse(helper: &HelperClient, id: &str) -> Result<bool> {
    Ok(matches!(helper.usage(id, None)?.spec.kind, VolumeKind::Image { sparse: true, .. }))
}

/// Writes a block, in which there are no zeros, every so many bytes.
fn scatter(rig: &Rig, id: &str, every: u64) -> Result<()> {
    let file = File::options().write(true).open(rig.pool().image(id))?;
    for at in (0..file.metadata()?.len()).step_by(every.try_into()?) {
        file.write_all_at(DATA, at)?;
    }
    Ok(file.sync_all()?)
}

/// Asks until all is done, or it is refused.
fn allocate_all(helper: &HelperClient, id: &str) -> Result<Response> {
    loop {
        match helper.request(&allocate(id))? {
            Err(error) if error.kind == ErrorKind::Busy => {}
            answer => return Ok(answer),
        }
    }
}

fn allocations_leave_the_reserve_alone(rig: &mut Rig) -> Result<()> {
    const RESERVE: u64 = 64 * MIB;
    rig.add_pool("default")?;
    rig.pools[0].options.push_str(&format!(",overcommit=3,reserve={RESERVE}"));
    let helper = rig.started_helper()?;
    let free = || -> Result<u64> {
        let found = rustix::fs::statvfs(&rig.pool().directory)?;
        Ok(found.f_bavail * found.f_frsize)
    };
    // There is room for each of them, and not for two.
    let size = free()? * 6 / 10 / MIB * MIB;
    for id in ["vol-a", "vol-b", "vol-c"] {
        helper.ask(&create(id, sparse_spec(size)))?;
        scatter(rig, id, MIB)?;
    }
    let answers = std::thread::scope(|scope| -> Result<Vec<_>> {
        let begin = |id| Ok::<_, anyhow::Error>((id, rig.helper()?));
        let begun = [begin("vol-a")?, begin("vol-b")?];
        let begun = begun.map(|(id, helper)| (id, scope.spawn(move || allocate_all(&helper, id))));
        begun.into_iter().map(|(id, thread)| Ok((id, thread.join().expect("a thread")?))).collect()
    })?;
    ensure!(free()? >= RESERVE, "{} bytes are free", free()?);
    for (id, answer) in &answers {
        let is_refused =
            matches!(answer, Err(error) if matches!(error.kind, ErrorKind::NoSpace | ErrorKind::NoRoom { .. }));
        ensure!(is_refused == is_sparse(&helper, id)?, "{id}: {answer:?}");
    }
    let (refused, _) = answers.iter().find(|(_, answer)| answer.is_err()).context("there was room for both")?;
    // Nobody else feels it.
    let other = File::options().write(true).open(rig.pool().image("vol-c"))?;
    other.write_all_at(&[1; 1 << 20], 3 * MIB)?;
    other.sync_all()?;
    drop(other);
    // With room again, it goes on.
    helper.ask_all(["vol-a", "vol-b", "vol-c"].into_iter().filter(|id| id != refused).map(delete))?;
    rig.eventually(20, || {
        let answer = allocate_all(&helper, refused)?;
        ensure!(answer.is_ok(), "{answer:?}");
        Ok(())
    })?;
    ensure!(rig.pool().image(refused).metadata()?.blocks() * 512 >= size && !is_sparse(&helper, refused)?);
    Ok(())
}

fn a_long_allocation_is_done_in_parts(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 16 * MIB;
    // What the kernel lets strace delay is not on the list of what the helper may call.
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.start_helper()?;
    let slowly = |rig: &mut Rig| -> Result<Tracer> {
        let process = rig.helper_pid()?;
        Tracer::delay(process, "fallocate", Duration::from_millis(100))
    };
    rig.helper()?.ask(&create("vol-a", sparse_spec(SIZE)))?;
    scatter(rig, "vol-a", SIZE / 64)?;
    let mut delayed = slowly(rig)?;
    let (mut parts, mut last) = (0, String::new());
    loop {
        let (helper, begun) = (rig.helper()?, Instant::now());
        let answer = helper.request(&allocate("vol-a"))?;
        ensure!(begun.elapsed() < rig.patience(Duration::from_secs(5)), "one part took {:?}", begun.elapsed());
        let Err(error) = answer else { break };
        ensure!(error.kind == ErrorKind::Busy && error.message.as_str() != last, "{error}, after {last}");
        last = error.message.as_str().to_owned();
        parts += 1;
        // In between, everything is as it was.
        ensure!(is_sparse(&helper, "vol-a")?);
        let conditions = helper.pool_status("default")?.conditions;
        ensure!(!conditions.as_slice().iter().any(|found| matches!(found, Condition::NotAnswering { .. })));
        if parts == 3 {
            // What its pod gives back meanwhile is allocated again.
            let image = File::options().write(true).open(rig.pool().image("vol-a"))?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&image, flags, 4096, SIZE / 128)?;
        }
        if parts == 1 {
            // The next helper begins anew, and comes to an end as well.
            drop(delayed);
            rig.restart_helper()?;
            (delayed, last) = (slowly(rig)?, String::new());
        }
    }
    ensure!(parts >= 2, "it was done in {parts} parts");
    drop(delayed);
    let (helper, file) = (rig.helper()?, File::open(rig.pool().image("vol-a"))?);
    ensure!(!is_sparse(&helper, "vol-a")? && file.metadata()?.blocks() * 512 >= SIZE);
    let mut block = [0; 8192];
    for at in (0..SIZE).step_by((SIZE / 64).try_into()?) {
        file.read_exact_at(&mut block, at)?;
        ensure!(block[..4096] == *DATA && block[4096..] == [0; 4096], "at {at}");
    }
    rig.helper_flags.clear();
    rig.restart_helper()
}

fn only_what_is_sparse_and_whole_is_allocated(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 32 * MIB;
    let helper = rig.started_helper()?;
    // What was allocated is never allocated again, even if its pod has given blocks back and the pool is full since.
    helper.ask_all([create("vol-a", image_spec(SIZE)), attach("vol-a"), make_device("vol-a", "a")])?;
    run(Command::new("blkdiscard").args(["--offset", "0", "--length", "16777216"]).arg(rig.target("a")))?;
    let (filler, free) = (rig.pool().directory.join("filler"), rustix::fs::statvfs(&rig.pool().directory)?);
    let file = File::create(&filler)?;
    let most = free.f_bavail * free.f_frsize - 4 * MIB;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, most)?;
    let before = rig.pool().image("vol-a").metadata()?.blocks();
    for _ in 0..2 {
        ensure!(helper.ask(&allocate("vol-a"))? == Reply::Size(bytes(SIZE)));
    }
    ensure!(rig.pool().image("vol-a").metadata()?.blocks() == before, "what its pod has given back was taken again");
    drop(file);
    std::fs::remove_file(&filler)?;
    // What was cut off is not filled up in silence.
    helper.ask(&create("vol-b", sparse_spec(SIZE)))?;
    File::options().write(true).open(rig.pool().image("vol-b"))?.set_len(SIZE / 2)?;
    denied(helper.request(&allocate("vol-b"))?, ErrorKind::PoolBroken, "instead of")?;
    ensure!(matches!(helper.usage("vol-b", None)?.condition, Some(Condition::ImageSize { .. })));
    helper.ask(&create("vol-d", directory_spec(SIZE)))?;
    denied(helper.request(&allocate("vol-d"))?, ErrorKind::WrongKind, "a directory volume is never allocated")?;
    for from in [SIZE + 1, u64::MAX / 2, u64::MAX] {
        let beyond = Request::Sharing { volume: volume("vol-a"), from };
        denied(helper.request(&beyond)?, ErrorKind::Invalid, "ends at")?;
    }
    Ok(())
}

fn limits_that_are_being_changed_are_nobody_elses(rig: &mut Rig) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.start_helper()?;
    let (changing, looking) = (rig.helper()?, rig.helper()?);
    looking.ask(&create("vol-a", directory_spec(16 * MIB)))?;
    let process = rig.helper_pid()?;
    // The record is written after the limits are set.
    let delayed = Tracer::delay(process, "fsetxattr", rig.patience(Duration::from_secs(3)))?;
    changing.send(&encode(&Request::SetInodes { volume: volume("vol-a"), inodes: 50.try_into()? })?)?;
    while !changing.is_answered(Duration::from_millis(100))? {
        let found = looking.usage("vol-a", None)?.condition;
        ensure!(found.is_none(), "while its limits are being changed: {found:?}");
    }
    drop(delayed);
    looking.ask_patiently(&delete("vol-a"))?;
    rig.helper_flags.clear();
    rig.restart_helper()
}
