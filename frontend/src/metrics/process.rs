//! What the kernel says about this process. Its files are opened before entering the sandbox, which allows none in
//! /proc.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use rustix::fs::Dir;
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::{METRICS, now};

/// The open files.
#[derive(Debug)]
pub struct Process {
    memory: File,
    descriptors: Mutex<Dir>,
}

impl Process {
    /// Opens them, and records when the process started.
    ///
    /// # Errors
    /// When /proc is not available.
    pub fn open() -> io::Result<Self> {
        METRICS.build_info.with([env!("CARGO_PKG_VERSION")]).set(1.0);
        METRICS.process_start.with([]).set(now());
        let memory = File::open("/proc/self/statm")?;
        let descriptors = Mutex::new(Dir::new(OwnedFd::from(File::open("/proc/self/fd")?))?);
        Ok(Self { memory, descriptors })
    }

    /// Measures the process.
    pub fn refresh(&self) {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        METRICS.process_cpu.set([], used.tv_sec as f64 + used.tv_nsec as f64 / 1e9);
        if let Some([size, resident]) = self.memory() {
            METRICS.process_virtual_memory.with([]).set(size);
            METRICS.process_memory.with([]).set(resident);
        }
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.rewind();
        // Less "." and "..".
        let open = descriptors.by_ref().filter(Result::is_ok).count().saturating_sub(2);
        METRICS.process_descriptors.with([]).set(open as f64);
        if let Some(most) = getrlimit(Resource::Nofile).current {
            METRICS.process_most_descriptors.with([]).set(most as f64);
        }
    }

    /// Virtual and resident memory, in bytes (proc_pid_statm(5)).
    fn memory(&self) -> Option<[f64; 2]> {
        let mut buffer = [0; 128];
        let length = self.memory.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(&buffer[..length]).ok()?;
        let mut pages = text.split_whitespace().map_while(|number| number.parse::<f64>().ok());
        Some([pages.next()?, pages.next()?].map(|pages| pages * page_size() as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_measured_again_and_again() {
        let process = Process::open().unwrap();
        process.refresh();
        let before = METRICS.process_descriptors.with([]).get();
        let more = [(); 8].map(|()| File::open("/proc/self/statm").unwrap());
        process.refresh();
        assert!(METRICS.process_descriptors.with([]).get() >= before + 4.0, "other tests open and close files, too");
        assert!(METRICS.process_memory.with([]).get() > 100_000.0);
        assert!(METRICS.process_cpu.with([]).get() > 0.0);
        drop(more);
    }
}
