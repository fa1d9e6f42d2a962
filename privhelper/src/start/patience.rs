//! What may hang is done by a child of the process, which is given a while. The process itself then does only what has
//! been seen to work.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sys::socket::{self, Received};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, process};

/// How long a filesystem or a device may take to answer.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Lets a child do `work`, which may send packets to the caller. `receive` gets them, until the work is done; the child
/// may be silent for `limit`. It keeps `needs` open and nothing else: it may outlive this process, and not even a kill ends it while it hangs, so it
/// would keep the locks that this process has.
///
/// # Errors
/// The connection to the child if it sends nothing for `limit`: the child goes on, and hangs up when it is done.
pub fn in_child(
    limit: Duration,
    needs: Option<BorrowedFd<'_>>,
    work: impl FnOnce(&OwnedFd),
    mut receive: impl FnMut(&[u8]),
) -> SysResult<Result<(), OwnedFd>> {
    let (ours, theirs) = socket::pair()?;
    if process::fork()? {
        let keep: Vec<_> = needs.into_iter().chain([theirs.as_fd()]).collect();
        // What is closed here still has owners in this copy of the memory.
        if socket::close_all_but(&keep).is_ok() {
            work(&theirs);
        }
        // It ends without returning to what the caller has open.
        std::process::exit(0);
    }
    drop(theirs);
    socket::set_receive_timeout(&ours, Some(limit))?;
    let mut buffer = [0; 1024];
    loop {
        match socket::receive(&ours, &mut buffer) {
            Ok(Received::Packet(length)) => receive(buffer.get(..length).unwrap_or_default()),
            Ok(_) => {
                rustix::process::wait(rustix::process::WaitOptions::empty()).by("wait4")?;
                return Ok(Ok(()));
            }
            Err(SysError { errno: Errno::AGAIN, .. }) => return Ok(Err(ours)),
            Err(SysError { errno: Errno::INTR, .. }) => {}
            Err(error) => return Err(error),
        }
    }
}
