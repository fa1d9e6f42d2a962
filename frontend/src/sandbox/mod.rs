//! What this process gives up before it serves: it keeps only the files and ports that it needs, and the system calls
//! that a client and server of sockets needs. An attacker who takes it over has no more than that, in a container or
//! not.

mod calls;
mod files;
mod sockets;

use std::path::PathBuf;

use landlock::{RulesetError, RulesetStatus};
use tracing::{info, warn};

pub use self::sockets::DOMAIN;

/// Whether this process confines itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sandbox {
    /// It does, as far as the kernel can.
    Enforce,
    /// It does not.
    Off,
}

/// The access to files and the network that is kept. Connecting to the helper's socket needs no entry here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Directories that files are read from.
    pub read: Vec<PathBuf>,
    /// Directories whose files are read, and replaced by new ones.
    pub replace: Vec<PathBuf>,
    /// Directories in which a socket is created and removed.
    pub sockets: Vec<PathBuf>,
    /// The ports to which TCP connections are made; `None` allows any, where they are not known.
    pub ports: Option<Vec<u16>>,
}

/// Why this process cannot confine itself.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The system call filter cannot be installed.
    #[error("cannot install the system call filter: {0}; to run without it, use --sandbox=off")]
    Calls(#[from] seccompiler::Error),
    /// Landlock cannot be applied.
    #[error("cannot confine this process with Landlock: {0}; to run without it, use --sandbox=off")]
    Files(#[from] RulesetError),
}

/// The outcome, to be logged once there is a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Confined {
    /// By Landlock, as far as the kernel supports it, and by the system call filter.
    By(RulesetStatus),
    /// Not at all.
    Not,
}

/// Confines the calling thread and all that it starts, permanently. Call this while there is no other thread.
///
/// # Errors
/// See [`SandboxError`]. A kernel without Landlock is not an error.
pub fn enter(sandbox: Sandbox, needs: &Needs) -> Result<Confined, SandboxError> {
    if sandbox == Sandbox::Off {
        return Ok(Confined::Not);
    }
    let status = files::restrict(needs)?;
    calls::restrict(needs)?;
    Ok(Confined::By(status))
}

impl Confined {
    /// Logs the outcome.
    pub fn report(self) {
        match self {
            Self::Not => warn!("this process is not confined: --sandbox=off"),
            Self::By(RulesetStatus::FullyEnforced) => info!("confined by seccomp and Landlock"),
            Self::By(RulesetStatus::PartiallyEnforced) => {
                info!("confined by seccomp, and by Landlock as far as this kernel can: all of it needs Linux 6.12");
            }
            Self::By(RulesetStatus::NotEnforced) => {
                warn!("confined by seccomp alone: the kernel is older than 5.13, or starts without Landlock");
            }
        }
    }
}
