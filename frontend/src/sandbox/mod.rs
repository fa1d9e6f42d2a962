//! What this process gives up before it serves: it keeps the files and the ports that it needs, and of the system calls
//! those that a client and a server of sockets needs. Whoever takes it over has no more than that, in a container or not.

mod calls;
mod files;

use std::path::PathBuf;

use landlock::{RulesetError, RulesetStatus};
use tracing::{info, warn};

/// Whether this process confines itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sandbox {
    /// It does, as far as the kernel can.
    Enforce,
    /// It does not.
    Off,
}

/// What is left of the files and of the network. Connecting to the helper's socket needs no entry here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Directories that files are read from.
    pub read: Vec<PathBuf>,
    /// Directories in which a socket is made and removed.
    pub sockets: Vec<PathBuf>,
    /// The ports to which TCP connections are made; any, if it is not known which.
    pub ports: Option<Vec<u16>>,
}

/// Why this process cannot confine itself.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The filter of system calls.
    #[error("cannot install the filter of system calls: {0}; --sandbox=off runs without")]
    Calls(#[from] seccompiler::Error),
    /// Landlock.
    #[error("cannot confine this process by Landlock: {0}; --sandbox=off runs without")]
    Files(#[from] RulesetError),
}

/// What became of it, to be logged when there is a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Confined {
    /// As far as Landlock can, and by the filter of system calls.
    By(RulesetStatus),
    /// Not at all.
    Not,
}

/// Confines the calling thread and all that it starts, for ever. Call it while there is no other thread.
///
/// # Errors
/// See [`SandboxError`]. A kernel without Landlock is no error.
pub fn enter(sandbox: Sandbox, needs: &Needs) -> Result<Confined, SandboxError> {
    if sandbox == Sandbox::Off {
        return Ok(Confined::Not);
    }
    let status = files::restrict(needs)?;
    calls::restrict(!needs.sockets.is_empty())?;
    Ok(Confined::By(status))
}

impl Confined {
    /// Logs it.
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
