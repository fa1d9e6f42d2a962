//! Power cuts at random moments. The pool's disk is a file, which is cloned while requests are being carried out: each
//! clone has the content of a disk that writes in the order it is told to, and that loses power at that moment.
//! Whatever was only in memory is not in it. Then a helper is started on each clone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_protocol::{Condition, ErrorKind, Request, VolumeSpec};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{Place, PoolFilesystem, RunOptions};

use super::{copies, filesystems};

cases! {
    a_power_cut_undoes_nothing_that_was_answered: Bare,
    a_hundred_power_cuts_on_xfs_undo_nothing_that_was_answered: Bare + Long,
    a_hundred_power_cuts_on_ext4_undo_nothing_that_was_answered: Bare + Long,
}

const SIZE: u64 = 1 << 20;
/// By how much a filesystem grows.
const STEP: u64 = 16 << 20;
/// The number of threads that send requests.
const WORKERS: usize = 3;
/// How long a request may be `Busy`, which other programs cause by opening loop devices.
const BUSY: Duration = Duration::from_secs(60);

fn a_power_cut_undoes_nothing_that_was_answered(rig: &mut Rig) -> Result<()> {
    cut(rig, PoolFilesystem::Xfs, 2)?;
    cut(rig, PoolFilesystem::Ext4, 2)
}

fn a_hundred_power_cuts_on_xfs_undo_nothing_that_was_answered(rig: &mut Rig) -> Result<()> {
    let number = hundred(rig);
    cut(rig, PoolFilesystem::Xfs, number)
}

fn a_hundred_power_cuts_on_ext4_undo_nothing_that_was_answered(rig: &mut Rig) -> Result<()> {
    let number = hundred(rig);
    cut(rig, PoolFilesystem::Ext4, number)
}

/// The machine's processor may be emulated.
fn hundred(rig: &Rig) -> usize {
    if rig.run_options.place == Place::Host { 100 } else { 10 }
}

/// What a power cut must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A request that is not answered yet may or may not have been carried out.
    Unsure,
    /// The volume was deleted.
    Absent,
    /// The volume was created.
    Made {
        /// It has at least this many bytes.
        size: u64,
        /// Something was written to it and synced. Otherwise a publish need not be on the disk.
        used: bool,
        /// This was written to it and synced.
        content: Option<u64>,
    },
}

/// What is known about each volume, with the number of changes so far: if the number is the same before and after a
/// cut, what is known held the whole time.
type Book = BTreeMap<String, (usize, Known)>;

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a volume is, by the beginning of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    Device,
    Filesystem,
}

impl Kind {
    fn of(id: &str) -> Self {
        match id.split('-').next() {
            Some("dev") => Self::Device,
            Some("own") => Self::Filesystem,
            _ => Self::Directory,
        }
    }

    /// As it is made, and as it may become.
    fn sizes(self) -> (u64, u64) {
        if self == Self::Filesystem { (filesystems::SIZE, STEP) } else { (SIZE, SIZE) }
    }

    /// Returns what has to be sent to use a volume, and then to let it go.
    fn uses(self, id: &str) -> [Vec<Request>; 2] {
        match self {
            Self::Directory => [vec![bind(id, id)], vec![unbind(id, id)]],
            Self::Device => [vec![attach(id), make_device(id, id)], vec![remove_device(id, id), detach(id)]],
            Self::Filesystem => {
                [vec![mount_filesystem(id), bind(id, id)], vec![unbind(id, id), unmount_filesystem(id)]]
            }
        }
    }
}

fn spec(id: &str) -> VolumeSpec {
    match Kind::of(id) {
        Kind::Directory => directory_spec(SIZE),
        Kind::Device => image_spec(SIZE),
        Kind::Filesystem => filesystem_spec(filesystems::SIZE),
    }
}

/// Returns what is written to when a volume is published at this path.
fn written(id: &str, path: &Path) -> PathBuf {
    if Kind::of(id) == Kind::Device { path.to_owned() } else { path.join("file") }
}

fn cut(rig: &mut Rig, filesystem: PoolFilesystem, number: usize) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let seed = std::env::var("BULKHEAD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(now as u64);
    println!("BULKHEAD_SEED={seed}");
    // Room for what was deleted and is not yet gone.
    let run_options = RunOptions { pool_fs: filesystem, pool_mebibytes: 6144, ..rig.run_options.clone() };
    // XFS clones a file atomically, with no writes in between.
    let disks = rig.work().join("disks").join(filesystem.name());
    fs::create_dir_all(&disks)?;
    let disk = disks.with_extension("disk");
    File::create_new(&disk)?.set_len(24 << 30)?;
    run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&disk))?;
    mount_image(&RunOptions { pool_fs: PoolFilesystem::Xfs, ..RunOptions::on_host(filesystem) }, &disk, &disks)?;
    let pool = disks.join("pool");
    let mut made = Pool::make(&run_options, &disks, &pool, "default")?;
    made.options.push_str(",filesystems=3");
    if filesystem == PoolFilesystem::Xfs {
        made.options.push_str(",extents=1000");
    }
    rig.pools = vec![made];
    rig.helper_flags = filesystems::helper_flags();

    rig.start_helper()?;
    let books = load(rig, &disks, seed, number)?;
    rig.kill_helper()?;
    mounts::unmount_all(&pool)?;
    for (cut, book) in books.iter().enumerate() {
        let clone = disks.join(format!("{cut}.disk"));
        mount_image(&run_options, &clone, &pool).with_context(|| format!("cut {cut}"))?;
        rig.start_helper().with_context(|| format!("start after cut {cut}"))?;
        check(rig, book).with_context(|| format!("after cut {cut} of {number}"))?;
        rig.kill_helper()?;
        mounts::unmount_all(&pool)?;
        fs::remove_file(clone)?;
    }
    rig.pools.clear();
    mounts::unmount_all(&disks)?;
    Ok(fs::remove_file(disk)?)
}

/// Sends requests, and clones the pool's disk `number` times meanwhile. Returns what is certain at each cut.
fn load(rig: &Rig, disks: &Path, seed: u64, number: usize) -> Result<Vec<Book>> {
    let (book, done) = (Mutex::new(Book::new()), AtomicBool::new(false));
    let mut random = Random::new(seed);
    std::thread::scope(|scope| {
        let worker = |worker| {
            let (socket, targets) = (rig.helper_socket(), rig.publish_directory());
            let random = Random::new(seed ^ (worker as u64 + 1));
            let takes_snapshots = rig.pool().options.contains("extents");
            let mut worker = Worker { socket, targets, book: &book, random, worker, takes_snapshots };
            let done = &done;
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    worker.step()?;
                }
                worker.end()
            })
        };
        let workers: Vec<_> = (0..WORKERS).map(worker).collect();
        let mut cuts = || {
            let mut books = Vec::new();
            for cut in 0..number {
                std::thread::sleep(rig.patience(Duration::from_millis(20 + random.below(150) as u64)));
                let source = File::open(disks.join("pool.disk"))?;
                let clone = File::create_new(disks.join(format!("{cut}.disk")))?;
                let mut certain = lock(&book).clone();
                rustix::fs::ioctl_ficlone(&clone, &source).context("clone the disk")?;
                let after = lock(&book).clone();
                certain.retain(|id, known| after.get(id) == Some(known));
                books.push(certain);
                if workers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    break;
                }
            }
            anyhow::Ok(books)
        };
        let books = cuts();
        done.store(true, Relaxed);
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a worker panicked"))??;
        }
        books
    })
}

/// A thread that works on its own volumes.
struct Worker<'a> {
    socket: PathBuf,
    targets: PathBuf,
    book: &'a Mutex<Book>,
    random: Random,
    worker: usize,
    takes_snapshots: bool,
}

impl Worker<'_> {
    fn helper(&self) -> Result<HelperClient> {
        HelperClient::welcomed(&self.socket)
    }

    fn known(&self, id: &str) -> Known {
        lock(self.book).get(id).map_or(Known::Absent, |(_, known)| *known)
    }

    fn note(&self, id: &str, known: Known) {
        let mut book = lock(self.book);
        let entry = book.entry(id.to_owned()).or_insert((0, known));
        *entry = (entry.0 + 1, known);
    }

    fn step(&mut self) -> Result<()> {
        if self.takes_snapshots && self.random.below(4) == 0 {
            return self.take_or_delete();
        }
        let kind = ["dir", "dev", "own"][self.random.below(3)];
        // Not every filesystem that could be made has room.
        let number = if kind == "own" { 0 } else { self.random.below(2) };
        let id = format!("{kind}-{}-{number}", self.worker);
        match (self.known(&id), self.random.below(4)) {
            (Known::Made { .. }, 0) => self.delete(&id),
            (Known::Made { size, used, content }, 1) => {
                self.grow(&id, size)?;
                self.note(&id, Known::Made { size: larger(&id, size), used, content });
                Ok(())
            }
            (Known::Made { size, used, .. }, _) => self.publish(&id, size, used),
            _ => self.create(&id),
        }
    }

    /// Takes a snapshot of a device whose content is known, or deletes one.
    fn take_or_delete(&mut self) -> Result<()> {
        let [of, id] = [format!("dev-{}-0", self.worker), format!("snap-{}-{}", self.worker, self.random.below(3))];
        match (self.known(&id), self.known(&of)) {
            (Known::Made { .. }, _) => self.delete(&id),
            (_, Known::Made { size, content: Some(content), .. }) => {
                self.note(&id, Known::Unsure);
                self.helper()?.ask_within(BUSY, &create_snapshot(&of, &id))?;
                self.note(&id, Known::Made { size, used: true, content: Some(content) });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn create(&self, id: &str) -> Result<()> {
        self.note(id, Known::Unsure);
        self.helper()?.ask_within(BUSY, &create(id, spec(id)))?;
        self.note(id, Known::Made { size: spec(id).size.get(), used: false, content: None });
        Ok(())
    }

    fn delete(&self, id: &str) -> Result<()> {
        self.note(id, Known::Unsure);
        self.helper()?.ask_within(BUSY, &end(id))?;
        self.note(id, Known::Absent);
        Ok(())
    }

    fn grow(&self, id: &str, size: u64) -> Result<()> {
        let size = bytes(larger(id, size));
        let request = match Kind::of(id) {
            Kind::Directory => Request::SetQuota { volume: volume(id), size, inodes: 4096.try_into()? },
            Kind::Device => Request::GrowImage { volume: volume(id), size },
            Kind::Filesystem => grow_filesystem(id, size.get()),
        };
        self.helper()?.ask_within(BUSY, &request).map(drop)
    }

    /// Publishes a volume, writes to it, has it grown sometimes, and unpublishes it.
    fn publish(&mut self, id: &str, mut size: u64, used: bool) -> Result<()> {
        let helper = self.helper()?;
        let [before, after] = Kind::of(id).uses(id);
        before.iter().try_for_each(|request| helper.ask_within(BUSY, request).map(drop))?;
        self.note(id, Known::Made { size, used, content: None });
        let path = written(id, &self.targets.join(id));
        let file = match Kind::of(id) {
            Kind::Device => File::options().write(true).open(path)?,
            _ => File::create(path)?,
        };
        let number = self.random.below(usize::MAX) as u64;
        file.write_all_at(&number.to_le_bytes(), 0)?;
        file.sync_all()?;
        drop(file);
        self.note(id, Known::Made { size, used: true, content: Some(number) });
        if self.random.below(4) == 0 {
            self.grow(id, size)?;
            size = larger(id, size);
            self.note(id, Known::Made { size, used: true, content: Some(number) });
        }
        after.iter().try_for_each(|request| helper.ask_within(BUSY, request).map(drop))
    }

    fn end(self) -> Result<()> {
        let ids: Vec<String> = lock(self.book).keys().cloned().collect();
        let own = |id: &&String| id.split('-').nth(1) == Some(self.worker.to_string().as_str());
        ids.iter().filter(own).try_for_each(|id| self.delete(id))
    }
}

/// The request to delete a volume or a snapshot.
fn end(id: &str) -> Request {
    if is_snapshot(id) { delete_snapshot(id) } else { delete(id) }
}

fn is_snapshot(id: &str) -> bool {
    id.starts_with("snap-")
}

/// The size that a volume of this size is grown to.
fn larger(id: &str, size: u64) -> u64 {
    let (first, step) = Kind::of(id).sizes();
    (size + step).min(first + 3 * step)
}

/// Checks what a start finds after a cut, and that all of it can be deleted.
fn check(rig: &Rig, book: &Book) -> Result<()> {
    let helper = rig.helper()?;
    let mut listed = helper.sizes()?;
    for snapshot in copies::listed(&helper, None)? {
        listed.insert(snapshot.snapshot.to_string(), snapshot.size.get());
    }
    for (id, (_, known)) in book {
        match known {
            Known::Unsure => {}
            Known::Absent => ensure!(!listed.contains_key(id), "{id} is back"),
            Known::Made { size, used, content } => {
                let found = listed.get(id).with_context(|| format!("{id} is missing: {known:?}"))?;
                ensure!(found >= size, "{id} has {found} bytes: {known:?}");
                if let (true, Some(content)) = (is_snapshot(id), content) {
                    let image = rig.pool().image(id);
                    has_number(&image, *content).with_context(|| format!("{id}: {known:?}"))?;
                    continue;
                }
                if *used {
                    denied(helper.request(&discard(id))?, ErrorKind::Refused, "may hold data")?;
                }
                if let Some(content) = content {
                    has_content(rig, id, *content).with_context(|| format!("{id}: {known:?}"))?;
                }
            }
        }
    }
    let names: Vec<&String> = listed.keys().collect();
    left(rig, &names).context("what was unfinished")?;
    for (id, size) in &listed {
        if is_snapshot(id) {
            helper.ask_within(BUSY, &delete_snapshot(id))?;
            continue;
        }
        // It is complete: it can be used, and has its size.
        let usage = helper.usage(id, None)?;
        let condition = usage.condition;
        ensure!(condition.as_ref().is_none_or(|kind| *kind == Condition::NotEnforced), "{id}: {condition:?}");
        ensure!(usage.spec == VolumeSpec { size: bytes(*size), ..spec(id) }, "{id}: {:?}", usage.spec);
        in_use(rig, id, |path| {
            let space = rustix::fs::statvfs(path)?;
            let is_whole = Kind::of(id) != Kind::Filesystem || space.f_blocks * space.f_frsize > size * 7 / 10;
            ensure!(is_whole, "the filesystem of {id} has {} blocks", space.f_blocks);
            Ok(())
        })?;
        if Kind::of(id) == Kind::Filesystem {
            filesystems::check_image(rig, id)?;
        }
        helper.ask_within(BUSY, &delete(id))?;
    }
    left(rig, &[])?;
    ensure!(mounts::below(&rig.publish_directory())?.is_empty());
    filesystems::check_detached(rig)
}

/// Looks at a volume while it is published.
fn in_use(rig: &Rig, id: &str, look: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let (helper, [before, after]) = (rig.helper()?, Kind::of(id).uses(id));
    before.iter().try_for_each(|request| helper.ask_within(BUSY, request).map(drop))?;
    look(&rig.target(id))?;
    after.iter().try_for_each(|request| helper.ask_within(BUSY, request).map(drop))
}

/// Checks that what was written to a volume is there.
fn has_content(rig: &Rig, id: &str, content: u64) -> Result<()> {
    in_use(rig, id, |path| has_number(&written(id, path), content))
}

/// Checks what a file or a device begins with.
fn has_number(path: &Path, content: u64) -> Result<()> {
    let mut found = [0; 8];
    File::open(path)?.read_exact_at(&mut found, 0)?;
    ensure!(found == content.to_le_bytes(), "what was written is lost");
    Ok(())
}

/// Waits until the pool contains these volumes and nothing else, and has promised nothing else.
fn left(rig: &Rig, volumes: &[&String]) -> Result<()> {
    let helper = rig.helper()?;
    rig.eventually(15, || {
        let entries = rig.pool().entries()?;
        ensure!(
            entries.iter().collect::<Vec<_>>() == volumes,
            "the pool holds {entries:?}, and {volumes:?} are listed"
        );
        let status = helper.pool_status("default")?;
        ensure!(status.emptying == 0 && (status.promised == 0) == volumes.is_empty(), "{status:?}");
        Ok(())
    })
}
