//! A network that only this run uses: it consists of loopback, so that nothing on it can reach another machine or be
//! reached from one.

use std::process::Command;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};

use crate::pool::run;

/// An address that the API server accepts as a pod's: it refuses to proxy to 127.0.0.0/8. It is reserved for
/// documentation, and no interface has it but this network's loopback, which has the other addresses of its range as well.
pub const POD_ADDRESS: &str = "192.0.2.1";

/// Moves this thread to a new network, and with it all threads and processes that it starts.
pub fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace: run this as root")?;
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    run(Command::new("ip").args(["address", "add", &format!("{POD_ADDRESS}/24"), "dev", "lo"]))
}
