//! A writer that keeps writing while other things happen to its volume.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_tests::pace::patience;
use bulkhead_tests::wait;

const BLOCK: usize = 4096;

/// How long a single write may take on a busy disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// A thread that keeps writing 4 KiB, and waits each time until the data is on disk.
pub struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Writer {
    /// Writes to `path`, to each of `blocks` blocks in turn, the first of them at `offset`.
    pub fn start(path: &Path, offset: u64, blocks: u64) -> Result<Self> {
        let file = File::options().create(!path.exists()).write(true).open(path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&written));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let number = count.load(Ordering::Relaxed);
                file.write_all_at(&[number as u8; BLOCK], offset + number % blocks * BLOCK as u64)?;
                file.sync_data()?;
                count.store(number + 1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
        Ok(Self { stop, written, thread })
    }

    /// Returns how many times it has written.
    pub fn count(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Waits until it has written more times than `before`.
    pub fn check_goes_on(&self, before: u64) -> Result<()> {
        wait::until(patience(PATIENCE), || {
            ensure!(!self.thread.is_finished(), "the writer has ended");
            ensure!(self.count() > before, "the writer has made no progress");
            Ok(())
        })
    }

    /// Stops it and returns how many times it has written.
    pub fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join().map_err(|_| anyhow!("the writer panicked"))?;
        ended.context("the writer failed")?;
        Ok(self.written.load(Ordering::Relaxed))
    }
}
