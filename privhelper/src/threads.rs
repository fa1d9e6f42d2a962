//! Threads, each with a working directory of its own, which do nothing before what confines them is in place.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

use crate::sys::{Result as SysResult, thread};

/// What a thread does.
pub type Work = Box<dyn FnOnce() + Send>;

/// Starts threads, and returns the gate before which each waits. The seccomp filter, which is installed after this, allows
/// neither other threads nor other working directories. Who installs it opens the gate.
///
/// # Errors
/// A sentence when one cannot be started.
pub fn start(threads: Vec<Work>) -> Result<Arc<Barrier>, String> {
    let (report, reports) = channel();
    let number = threads.len();
    let gate = Arc::new(Barrier::new(number.saturating_add(1)));
    for work in threads {
        let (report, gate) = (report.clone(), Arc::clone(&gate));
        spawn(move || {
            let _ = report.send(thread::own_working_directory());
            gate.wait();
            work();
        })?;
    }
    let reported: SysResult<()> = reports.iter().take(number).collect();
    reported.map(|()| gate).map_err(|error| format!("cannot unshare a thread's working directory: {error}"))
}

/// Starts one thread.
///
/// # Errors
/// A sentence when that fails.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(work);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}
