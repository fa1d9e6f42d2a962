//! Why a command failed, and whose fault that is.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use bulkhead_console::manual::ManualError;
use bulkhead_console::prompt::NotConfirmed;
use bulkhead_frontend::csi::code_name;
use bulkhead_frontend::helper::Unreachable;
use bulkhead_model::reading::Unended;
use rustix::io::Errno;
use rustix::process::geteuid;
use tonic::{Code, Status};

use crate::client::PATIENCE;
use crate::delete::Needed;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("there is no socket {}: bulkhead-privhelper makes it when it starts (or bulkhead-frontend, with --csi-endpoint); is it running, and does it use this path?", .0.display())]
    NoSocket(PathBuf),
    #[error("nobody holds the socket {}: bulkhead-privhelper is not running, or bulkhead-frontend has not run since it was started; start the one that is not running, the former first", .0.display())]
    Refused(PathBuf),
    #[error("this user may not connect to {}: run bulkheadctl as root", .0.display())]
    NotAllowed(PathBuf),
    #[error("{} is the socket of bulkhead-privhelper, not of bulkhead-frontend: give it with --helper-socket instead", .0.display())]
    HelpersSocket(PathBuf),
    #[error("cannot connect to {}: {error}; is it the socket of bulkhead-frontend?", path.display())]
    Connect { path: PathBuf, error: io::Error },
    #[error("nobody has answered at {} within {} seconds: bulkhead-privhelper keeps this socket while bulkhead-frontend is stopped or hangs; start bulkhead-frontend again, and see its log", .0.display(), PATIENCE.as_secs())]
    Silent(PathBuf),
    #[error("what answers at {} does not speak CSI ({why}): is it the socket of bulkhead-frontend?", path.display())]
    NotCsi { path: PathBuf, why: String },
    #[error("{} is the socket of a CSI driver, not of bulkhead-privhelper: give it with --endpoint instead", .0.display())]
    FrontendsSocket(PathBuf),
    #[error("bulkhead-privhelper closed the connection to {} at once: it serves a single user, that of bulkhead-frontend (--allow-uid), and this is user {}; run bulkheadctl as that user, or as root without --helper-socket", .0.display(), geteuid().as_raw())]
    WrongUser(PathBuf),
    #[error(transparent)]
    NoHelper(Unreachable),
    #[error("{}", explain(.0))]
    Call(#[from] Box<Status>),
    #[error("the response has no {0}; are the releases of bulkheadctl and bulkhead-frontend compatible?")]
    Incomplete(&'static str),
    #[error(
        "{0}; nothing is concluded from a part of it: unless so much is there, what answers is not what it should be, so see its log"
    )]
    Unended(#[from] Unended),
    #[error(transparent)]
    NotConfirmed(#[from] NotConfirmed),
    #[error(transparent)]
    Needed(#[from] Needed),
    #[error(transparent)]
    Manual(#[from] ManualError),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Returns why there is no connection to the frontend's socket at `path`.
    pub fn no_frontend(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::NotFound => Self::NoSocket(path),
            ErrorKind::ConnectionRefused => Self::Refused(path),
            ErrorKind::PermissionDenied => Self::NotAllowed(path),
            // So many wait already that no more are taken.
            ErrorKind::WouldBlock => Self::Silent(path),
            _ if is_of_another_type(&error) => Self::HelpersSocket(path),
            _ => Self::Connect { path, error },
        }
    }

    /// Returns why there is no connection to the helper's socket at `path`.
    pub fn no_helper(path: &Path, why: Unreachable) -> Self {
        match why {
            Unreachable::Connect { error, .. } if is_of_another_type(&error) => Self::FrontendsSocket(path.to_owned()),
            Unreachable::Closed | Unreachable::Broken(_) | Unreachable::WrongUser { .. } => {
                Self::WrongUser(path.to_owned())
            }
            why => Self::NoHelper(why),
        }
    }

    /// Returns what went wrong in one word, for scripts: the gRPC code if the frontend gave one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Call(status) => code_name(status.code()),
            Self::NotAllowed(_) | Self::WrongUser(_) => "PERMISSION_DENIED",
            Self::NotConfirmed(_) => "NOT_CONFIRMED",
            Self::Needed(_) => "FAILED_PRECONDITION",
            Self::Unended(_) => "UNENDED",
            Self::Runtime(_) | Self::Incomplete(_) | Self::Manual(_) | Self::Output(_) => "FAILED",
            Self::NoSocket(_)
            | Self::Refused(_)
            | Self::HelpersSocket(_)
            | Self::Connect { .. }
            | Self::Silent(_)
            | Self::NotCsi { .. }
            | Self::FrontendsSocket(_)
            | Self::NoHelper(_) => "UNAVAILABLE",
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Call(Box::new(status))
    }
}

/// Returns whether a socket carries packets and not a stream, or the reverse: the helper's does, the frontend's does
/// not.
fn is_of_another_type(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error())
}

fn explain(status: &Status) -> String {
    let advice = match status.code() {
        Code::Unavailable | Code::Aborted => " (try again)",
        Code::Unimplemented => " (this is another CSI driver, or a bulkhead-frontend that is older than bulkheadctl)",
        _ => "",
    };
    format!("{}: {}{advice}", code_name(status.code()), status.message())
}
