//! The third process of a pool, which is there only if the pool is configured for filesystems in images. It mounts what is
//! on a loop device, and attaches the mount to nothing: the server, which gets it, places it. So who can make a mount cannot
//! place it, and who can place one cannot make it.
//!
//! It is a user of its own, and its root holds nothing but the node of the device that is to be mounted, which it can name
//! and not open.

use std::os::fd::{AsFd, OwnedFd};

use caps::Capability::CAP_SYS_ADMIN;

use crate::capabilities::MOUNTER;
use crate::sys::capability::{allow, raise};
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, Result as SysResult, xfs};

/// The node in the mounter's root of the loop device with this number.
pub fn node(number: u32) -> String {
    format!("loop{number}")
}

/// Mounts what it is asked to until the server is gone. A request is the number of a loop device. The answer is 0 and comes
/// with the mount, or it is the kernel's error number.
pub fn run(server: &OwnedFd) -> Result<(), String> {
    let mut request = [0; 4];
    loop {
        match socket::receive(server, &mut request) {
            Ok(Received::Packet(4)) => {}
            Ok(Received::Closed) => return Ok(()),
            Ok(_) => return Err("the mounter received a packet of a wrong length".to_owned()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(format!("the mounter cannot receive from the server: {errno}")),
        }
        let mounted = mount(u32::from_ne_bytes(request));
        let answer = mounted.as_ref().map_or_else(|errno| errno.raw_os_error(), |_| 0);
        let sent = socket::send(server, &answer.to_ne_bytes(), mounted.as_ref().ok().map(AsFd::as_fd));
        sent.map_err(|errno| format!("the mounter cannot answer: {errno}"))?;
    }
}

fn mount(number: u32) -> SysResult<OwnedFd> {
    let _allowed = allow(MOUNTER);
    let _raised = raise(CAP_SYS_ADMIN)?;
    xfs::mount(&format!("/{}", node(number)))
}
