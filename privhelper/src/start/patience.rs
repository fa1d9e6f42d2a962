//! What may hang is done by a child of the process, which is given a while. The process itself then does only what has
//! been seen to work.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use caps::{CapSet, Capability};

use super::filter::{self, OnViolation, Process};
use super::jail::Jail;
use super::judge::{Said, say};
use super::privileges::{self, Unprivileged};
use super::refusal::Refusal;
use crate::log;
use crate::sys::capability::allow;
use crate::sys::packet::Received;
use crate::sys::socket;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, packet, process};

/// How long a filesystem or a device may take to answer.
pub const LIMIT: Duration = Duration::from_secs(10);

/// The last packet of a child whose work is done. No other has this length.
const DONE: &[u8] = &[0];

/// What a child keeps. It may outlive this process, and not even a kill ends it while it hangs: what it had besides would be
/// kept with it.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The capabilities that it may raise, as far as this process has them.
    pub capabilities: &'static [Capability],
    /// What becomes its root, with namespaces of its own; without any it is where this process is.
    pub root: Option<&'static str>,
    /// What its filter of system calls does.
    pub on_violation: OnViolation,
}

/// Lets a child do `work`, which may send packets to the caller, of more than one byte. `receive` gets them, until the work
/// is done; the child may be silent for `limit`. It keeps what it `needs`, the connection to the caller, and nothing else.
///
/// # Errors
/// The connection to the child if it sends nothing for `limit`: the child goes on, and hangs up when it is done. `CHILD` when
/// it ends before it is done.
pub fn in_child(
    limit: Duration,
    needs: Needs,
    work: impl FnOnce(&OwnedFd),
    mut receive: impl FnMut(&[u8]),
) -> SysResult<Result<(), OwnedFd>> {
    let (ours, theirs) = packet::pair()?;
    if process::fork()? {
        let done = carry_out(needs, &theirs, work);
        if let Err(complaint) = &done {
            log::error!("a process that looks at what may hang stops complaint={:?}", complaint.to_string());
        }
        // It ends without returning to what the caller has open.
        std::process::exit(i32::from(done.is_err()));
    }
    drop(theirs);
    packet::set_timeout(&ours, packet::Timeout::Recv, Some(limit))?;
    let (mut buffer, mut is_done) = ([0; bulkhead_protocol::MAX_PACKET], false);
    loop {
        match packet::receive(&ours, &mut buffer) {
            Ok(Received::Packet(1)) => is_done = true,
            Ok(Received::Packet(length)) => receive(buffer.get(..length).unwrap_or_default()),
            Ok(_) => {
                rustix::process::wait(rustix::process::WaitOptions::empty()).by("wait4")?;
                return if is_done { Ok(Ok(())) } else { Err(SysError::of(Errno::CHILD)) };
            }
            Err(SysError { errno: Errno::AGAIN, .. }) => return Ok(Err(ours)),
            Err(SysError { errno: Errno::INTR, .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Lets a child without any capability `judge`, and refuses what it refuses.
///
/// # Errors
/// Its sentence, or one on what has failed.
pub fn judged(
    on_violation: OnViolation,
    judge: impl FnOnce(&Unprivileged) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let needs = Needs { capabilities: &[], root: None, on_violation };
    let work = |line: &OwnedFd| {
        let judged = privileges::give_up().and_then(|unprivileged| judge(&unprivileged));
        say(line, &Said::Sound(judged));
    };
    let mut judged = Err("the process that judges the host has said nothing".to_owned().into());
    let answers = in_child(LIMIT, needs, work, |packet| match bulkhead_protocol::decode(packet) {
        Ok(Said::Sound(found)) => judged = found,
        Ok(Said::Uuid(_) | Said::Volume(_) | Said::Fit(_)) | Err(_) => {}
    });
    let failed = |error: SysError| format!("the process that judges the host fails: {error}");
    answers.map_err(failed)?.map_err(|_| "the process that judges the host does not answer".to_owned())?;
    judged
}

/// Confines the child, and does its work.
fn carry_out(needs: Needs, line: &OwnedFd, work: impl FnOnce(&OwnedFd)) -> Result<(), Refusal> {
    let fail = |what: &'static str| move |error: SysError| format!("cannot {what}: {error}");
    needs.root.map_or(Ok(()), Jail::enter_place).map_err(fail("leave the jail for a place of its own"))?;
    // What is closed here still has owners in this copy of the memory.
    socket::close_all_but(&[line.as_fd()]).map_err(fail("close the other descriptors"))?;
    let permitted = caps::read(None, CapSet::Permitted).map_err(|_| Errno::PERM).by("capget");
    let permitted = permitted.map_err(fail("read its capabilities"))?;
    let kept: Vec<_> = needs.capabilities.iter().copied().filter(|one| permitted.contains(one)).collect();
    privileges::drop_all_but(&kept)?;
    filter::install(Process::Child, needs.on_violation)?;
    let _allowed = allow(needs.capabilities);
    work(line);
    Ok(packet::send(line, DONE, None).map_err(fail("say that it is done"))?)
}
