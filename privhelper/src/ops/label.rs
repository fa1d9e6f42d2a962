//! The label that SELinux has for all files of a filesystem in an image. It is a property of the mounted filesystem, which
//! the kernel keeps, and tells, as long as anybody has it mounted.

use bulkhead_protocol::{Error, SecurityContext, VolumeId};

use super::loops::{check_elsewhere, detach};
use crate::state::{Held, Kind, in_use, unsupported};
use crate::sys::Error as SysError;

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
    if !volume.published.is_empty() {
        let (id, found, wanted) = (held.id, described(volume.label.as_ref()), described(label));
        return Err(in_use(format!(
            "volume {id} is published {found}, and cannot be mounted {wanted} as well: give all its pods the same seLinuxOptions.level, or unpublish it everywhere first"
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

/// Returns whether it is the label that the kernel has refused, before it has looked at the filesystem.
pub fn is_of_label(error: &SysError) -> bool {
    error.call() == r#"fsconfig("context")"#
}

/// The error for a label that the kernel does not know.
pub fn not_known(id: &VolumeId, label: &SecurityContext) -> Error {
    unsupported(format!(
        "volume {id} cannot be mounted with the SELinux context {label}: SELinux is off on this node, or its policy has no such level; leave the context out, or see docs/platforms.md#where-selinux-enforces"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Called, Errno};

    #[test]
    fn a_label_is_refused_by_the_call_that_sets_it() {
        let error = |call: &str, of: &str| Err::<(), _>(Errno::INVAL).by_with(call, of).expect_err("it has failed");
        assert!(is_of_label(&error("fsconfig", "context")));
        for (call, of) in [("fsconfig", "source"), ("fsconfig", "nouuid"), ("fsopen", "xfs"), ("umount2", "context")] {
            assert!(!is_of_label(&error(call, of)), "{call}({of})");
        }
        assert!(!is_of_label(&SysError::of(Errno::INVAL)));
    }
}
