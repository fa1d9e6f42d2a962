//! What a process can still do when somebody has taken it over. The system calls are made by the process itself.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::observe::processes;
use bulkhead_tests::stand::Stand;
use bulkhead_tests::takeover::Argument::{Bytes, Number};
use bulkhead_tests::takeover::{Outcome, Takeover};
use bulkhead_tests::wait;
use nix::errno::Errno;
use nix::libc;

cases! {
    an_emptier_that_is_taken_over_writes_nothing_and_leaves_its_pool_nowhere: Kernel,
}

/// The file of each pool that names it.
const MARKER: &[u8] = b".bulkhead\0";
const REFUSED: Outcome = Outcome::Refused(Errno::EACCES);

/// `struct open_how` of openat2(2).
fn how(flags: i32, mode: u64) -> Result<Vec<u8>> {
    Ok([u64::try_from(flags)?, mode, 0].map(u64::to_ne_bytes).concat())
}

/// Opens a path for a process that is taken over.
fn open(process: &mut Takeover, directory: i64, path: &[u8], flags: i32) -> Result<Outcome> {
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { 0o600 };
    let how = how(flags, mode)?;
    let arguments = [Number(directory), Bytes(path), Bytes(&how), Number(i64::try_from(how.len())?)];
    process.call(libc::SYS_openat2, &arguments)
}

fn an_emptier_that_is_taken_over_writes_nothing_and_leaves_its_pool_nowhere(stand: &mut Stand) -> Result<()> {
    let server = stand.running_helper()?.pid();
    let emptier = processes::descendants(i32::try_from(server)?)?.first().context("an emptier")?.pid;
    let patience = stand.patience(Duration::from_secs(5));
    // It is confined beside the helper, which may serve by then.
    wait::until(patience, || {
        ensure!(fs::read_to_string(format!("/proc/{emptier}/status"))?.contains("\nSeccomp:\t2\n"), "no filter yet");
        Ok(())
    })?;
    let pool = descriptor(emptier, Metadata::is_dir)?;
    let marker = stand.pool().directory.join(".bulkhead");
    let before = fs::read(&marker)?;
    let mut emptier = Takeover::of(emptier, patience)?;
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        let opened = open(&mut emptier, pool, MARKER, flags)?;
        ensure!(opened == REFUSED, "opening a file with {flags:#o}: {opened:?}");
    }
    let made = open(&mut emptier, pool, b"new\0", libc::O_CREAT | libc::O_EXCL | libc::O_RDONLY)?;
    ensure!(made == REFUSED, "making a file: {made:?}");
    let renamed = emptier.call(
        libc::SYS_renameat2,
        &[Number(pool), Bytes(MARKER), Number(pool), Bytes(b"other\0"), Number(libc::RENAME_NOREPLACE.into())],
    )?;
    ensure!(renamed == REFUSED, "renaming a file: {renamed:?}");
    for path in [&b"/\0"[..], b"/bulkhead-pools\0"] {
        let opened = open(&mut emptier, libc::AT_FDCWD.into(), path, libc::O_RDONLY | libc::O_DIRECTORY)?;
        ensure!(opened == REFUSED, "opening a directory outside the pool: {opened:?}");
    }
    let listed = open(&mut emptier, pool, b".\0", libc::O_RDONLY | libc::O_DIRECTORY)?;
    ensure!(matches!(listed, Outcome::Done(_)), "its own work is left to it: {listed:?}");
    let made = emptier.call(libc::SYS_mkdirat, &[Number(pool), Bytes(b"new\0"), Number(0o700)])?;
    ensure!(made == Outcome::Killed, "making a directory: {made:?}");
    drop(emptier);
    ensure!(fs::read(&marker)? == before, "the pool's marker has changed");
    // The helper ends with its emptier.
    stand.abandon();
    stand.start_helper()
}

/// The first descriptor of a process that refers to such a file.
fn descriptor(process: i32, wanted: impl Fn(&Metadata) -> bool) -> Result<i64> {
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let entry = entry?;
        let found = fs::metadata(entry.path());
        if found.is_ok_and(|found| wanted(&found) && found.ino() != 0) {
            return entry.file_name().to_str().and_then(|name| name.parse().ok()).context("a descriptor");
        }
    }
    anyhow::bail!("process {process} has no such descriptor")
}
