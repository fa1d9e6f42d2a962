//! The label that SELinux has for all files of a filesystem in an image. It is a property of the mounted filesystem, which
//! the kernel keeps, and tells, as long as anybody has it mounted.

use bulkhead_protocol::{Error, SecurityContext};

use super::loops::{check_elsewhere, detach};
use super::target::still_published;
use crate::state::{Held, Kind, in_use, unsupported};
use crate::sys::{Errno, Error as SysError};

/// Sees to it that the filesystem of a volume is mounted with this label, or can be: the kernel changes that of none that is
/// mounted.
///
/// # Errors
/// `InUse` when it is mounted in another way, and in use.
pub fn set_label(held: &mut Held<'_>, label: Option<&SecurityContext>) -> Result<(), Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    if volume.label.as_ref() == label {
        return Ok(());
    }
    let (found, wanted) = (described(volume.label.as_ref()), described(label));
    if let Some(target) = still_published(held, None) {
        return Err(in_use(format!(
            "volume {} is published {found} at {target}, and cannot be mounted {wanted} as well: give all its pods the same seLinuxOptions.level, or unpublish it everywhere first",
            held.id
        )));
    }
    // What was mounted to be grown or copied, or for a publication that has failed, is let go.
    check_elsewhere(held)?;
    detach(held)?;
    held.change(|volume| volume.label = label.cloned());
    Ok(())
}

fn described(label: Option<&SecurityContext>) -> String {
    label.map_or_else(|| "without an SELinux context".to_owned(), |label| format!("with the SELinux context {label}"))
}

/// Returns whether it may be its label for which a filesystem was not mounted: the kernel does not know it, or may not give it.
/// Which call says so depends on the kernel (before Linux 5.18, the one that mounts).
pub fn is_of_label(error: &SysError) -> bool {
    [Errno::INVAL, Errno::ACCESS, Errno::PERM].contains(&error.errno)
}

/// The error for such a label. If nothing is mounted with it, nothing will be.
pub fn label_refused(held: &mut Held<'_>, label: &SecurityContext, error: &SysError) -> Error {
    let is_published = held.known().is_some_and(|volume| !volume.published.is_empty());
    if !is_published {
        held.change(|volume| volume.label = None);
    }
    unsupported(format!(
        "volume {} cannot be mounted with the SELinux context {label} ({error}): SELinux is off on this node, its policy has no such type or level, or the module bulkhead.cil there is of an earlier release; leave the context out, or see docs/platforms.md#where-selinux-enforces",
        held.id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_not_what_damage_is_called() {
        for (errno, is_label) in [
            (Errno::INVAL, true),
            (Errno::ACCESS, true),
            (Errno::PERM, true),
            (Errno::UCLEAN, false),
            (Errno::IO, false),
            (Errno::INPROGRESS, false),
        ] {
            assert_eq!(is_of_label(&SysError::of(errno)), is_label, "{errno}");
        }
    }
}
