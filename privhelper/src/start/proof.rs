//! Step 4 of the helper's life: the proof that what is mounted in the jail is mounted on the host.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::Mode;

use super::host::Host;
use super::jail::Jail;
use crate::sys::{Errno, Result as SysResult, file, mount};

/// The name of the trial mount. The kubelet takes no directory of that name for a pod.
const TRIAL: &str = ".bulkhead-trial";

/// Proves for each publish directory that a mount made in the jail appears on the host, and that it goes when it is
/// unmounted.
///
/// # Errors
/// A sentence that names the directory.
pub fn prove(host: &Host, jail: &Jail) -> Result<(), String> {
    for (outside, inside) in host.publish.iter().zip(&jail.publish) {
        let shown = outside.path.display();
        let (appeared, went) = try_mount(&outside.descriptor, inside, &jail.nodes)
            .map_err(|errno| format!("cannot perform a trial mount in {shown}: {errno}"))?;
        if !appeared || !went {
            let what = if appeared { "unmounting" } else { "a mount" };
            return Err(format!(
                "{what} in {shown} does not reach the host; run the helper in the host's mount namespace"
            ));
        }
    }
    Ok(())
}

/// Mounts `source` in the jail and unmounts it; whether it appeared outside, and whether it went.
fn try_mount(outside: &OwnedFd, inside: &OwnedFd, source: &OwnedFd) -> SysResult<(bool, bool)> {
    // A helper that was killed here may have left its trial behind.
    while file::status_at(inside, TRIAL).is_ok_and(|status| status.mount_root) {
        mount::unmount_entry(inside.as_fd(), TRIAL)?;
    }
    match file::make_directory(inside, TRIAL, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let seen = || -> SysResult<bool> {
        let status = file::status_at(outside, TRIAL)?;
        Ok(status.mount_root && status.id == file::status(source)?.id)
    };
    mount::attach(mount::clone_of(source)?, file::open_entry(inside, TRIAL)?)?;
    let appeared = seen();
    mount::unmount_entry(inside.as_fd(), TRIAL)?;
    let gone = seen().map(|seen| !seen);
    file::remove_directory(inside, TRIAL)?;
    Ok((appeared?, gone?))
}
