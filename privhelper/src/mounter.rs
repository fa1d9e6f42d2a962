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
use crate::sys::{Errno, Error as SysError, Result as SysResult, xfs};

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
            Err(SysError { errno: Errno::INTR, .. }) => continue,
            Err(error) => return Err(format!("the mounter cannot receive from the server: {error}")),
        }
        let mounted = mount(u32::from_ne_bytes(request));
        let answer = mounted.as_ref().map_or_else(|error| error.errno.raw_os_error(), |_| 0);
        let sent = socket::send(server, &answer.to_ne_bytes(), mounted.as_ref().ok().map(AsFd::as_fd));
        sent.map_err(|error| format!("the mounter cannot answer: {error}"))?;
    }
}

fn mount(number: u32) -> SysResult<OwnedFd> {
    let _allowed = allow(MOUNTER);
    let _raised = raise(CAP_SYS_ADMIN)?;
    xfs::mount(&format!("/{}", node(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what becomes of a mounter that is sent these packets by a server that then ends, and how many answers it
    /// gives.
    fn sent(packets: &[&[u8]]) -> (Result<(), String>, usize) {
        let (server, line) = socket::pair().expect("a pair");
        for packet in packets {
            socket::send(&server, packet, None).expect("there is room");
        }
        let mounter = std::thread::spawn(move || run(&line));
        let mut answers = 0;
        for _ in packets {
            let mut answer = [0; 4];
            match socket::receive_with_descriptor(&server, &mut answer) {
                Ok((Received::Packet(4), None)) if answer != [0; 4] => answers += 1,
                // What it has not received is lost with it.
                Ok((Received::Closed, None)) | Err(SysError { errno: Errno::CONNRESET, .. }) => break,
                other => panic!("{other:?}"),
            }
        }
        drop(server);
        (mounter.join().expect("it ends well"), answers)
    }

    #[test]
    fn a_server_gets_an_error_for_any_number_and_nothing_for_anything_else() {
        let numbers = [0, 7, 0x8_0000, u32::MAX].map(u32::to_ne_bytes);
        assert_eq!(sent(&numbers.each_ref().map(|number| &number[..])), (Ok(()), 4));
        assert_eq!(sent(&[]), (Ok(()), 0));
        for wrong in [&b"123"[..], b"12345", b"1", &[0; 4096]] {
            let (ended, answers) = sent(&[&numbers[0], wrong, &numbers[1]]);
            assert!(ended.is_err_and(|complaint| complaint.contains("wrong length")), "{} bytes", wrong.len());
            assert!(answers <= 1, "{answers} answers");
        }
    }
}
