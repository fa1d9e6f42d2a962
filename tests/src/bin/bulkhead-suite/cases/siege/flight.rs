//! What one process leaves in flight counts against all processes of its user, the helper among them.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Result, ensure};
use bulkhead_protocol::Socket;
use bulkhead_tests::cases;
use bulkhead_tests::helper::listen;
use bulkhead_tests::rig::Rig;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

cases! {
    descriptors_that_roots_other_processes_have_in_flight_keep_no_socket_from_a_frontend: Bare,
}

/// Sends descriptors that nobody receives.
fn in_flight(number: usize) -> Result<Vec<(OwnedFd, OwnedFd)>> {
    const AT_A_TIME: usize = 200;
    let mut pairs = Vec::new();
    for _ in 0..number.div_ceil(AT_A_TIME) {
        let (one, other) = UnixStream::pair()?;
        let (one, other) = (OwnedFd::from(one), OwnedFd::from(other));
        let descriptors: Vec<BorrowedFd<'_>> = (0..AT_A_TIME).map(|_| one.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_A_TIME))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        rustix::net::sendmsg(&one, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
        pairs.push((one, other));
    }
    Ok(pairs)
}

fn descriptors_that_roots_other_processes_have_in_flight_keep_no_socket_from_a_frontend(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    let kept = in_flight(10_000)?;
    let listened = listen(&rig.helper()?, Socket::Csi);
    drop(kept);
    listen(&rig.helper()?, Socket::Csi)?;
    listened.map(drop)
}
