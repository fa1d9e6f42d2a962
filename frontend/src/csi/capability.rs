//! Translates CSI's volume capabilities.

use bulkhead_model::volumes::{Access, Fault, Mode, MountOptions, Parameters, Sharing, check_filesystem};

use crate::proto::csi::VolumeCapability;
use crate::proto::csi::volume_capability::AccessType;
use crate::proto::csi::volume_capability::access_mode::Mode as AccessMode;

/// The maximum total length of mount flags in bytes (CSI, VolumeCapability).
const LONGEST_FLAGS: usize = 4096;

/// The kind of access that `capability` requests.
///
/// # Errors
/// `Invalid` when something is missing or wrong, `Unsupported` when Bulkhead cannot do it.
pub(super) fn access(capability: Option<&VolumeCapability>) -> Result<Access, Fault> {
    let (access_type, mode) = complete(capability)?;
    let sharing = sharing(mode)?;
    let access = match access_type {
        AccessType::Block(_) => Access::Block { sharing, read_only: false },
        AccessType::Mount(mount) => {
            if mount.mount_flags.iter().map(String::len).sum::<usize>() > LONGEST_FLAGS {
                return Err(Fault::invalid("volume_capability.mount.mount_flags exceed 4096 bytes in total"));
            }
            let options = MountOptions::parse(mount.mount_flags.iter().map(String::as_str))?;
            check_filesystem(&mount.fs_type)?;
            if !mount.volume_mount_group.is_empty() {
                return Err(Fault::unsupported("volume_mount_group is not supported: leave it empty"));
            }
            Access::Directory { sharing, options }
        }
    };
    Ok(access.restricted(false))
}

/// The two halves of a capability, both of which are required.
///
/// # Errors
/// When one is missing.
pub(super) fn complete(capability: Option<&VolumeCapability>) -> Result<(&AccessType, i32), Fault> {
    let missing = |field| Fault::invalid(format!("volume_capability{field} is missing"));
    let capability = capability.ok_or_else(|| missing(""))?;
    let access_type = capability.access_type.as_ref().ok_or_else(|| missing(".access_type"))?;
    let mode = capability.access_mode.as_ref().ok_or_else(|| missing(".access_mode"))?.mode;
    if mode == AccessMode::Unknown as i32 { Err(missing(".access_mode.mode")) } else { Ok((access_type, mode)) }
}

/// The mode common to all of `capabilities`: a volume has only one kind.
///
/// # Errors
/// When there are none, one is not supported, or they differ.
pub(super) fn common_mode(capabilities: &[VolumeCapability]) -> Result<Mode, Fault> {
    let mut common = None;
    for capability in capabilities {
        let mode = access(Some(capability))?.mode();
        if common.is_some_and(|common| common != mode) {
            return Err(Fault::invalid("volume_capabilities: a volume is either a directory or a block device"));
        }
        common = Some(mode);
    }
    common.ok_or_else(|| Fault::invalid("volume_capabilities is missing"))
}

/// Checks that volumes with these parameters can be used as all of `capabilities` say.
///
/// # Errors
/// When one has a label for files that have none of their own.
pub(super) fn check_options(parameters: &Parameters, capabilities: &[VolumeCapability]) -> Result<(), Fault> {
    capabilities.iter().try_for_each(|capability| match access(Some(capability))? {
        Access::Directory { options, .. } => options.check(parameters.backing(Some(Mode::Directory))),
        Access::Block { .. } => Ok(()),
    })
}

/// The parameters for volumes with the filesystem that `capabilities` request.
///
/// # Errors
/// When no pool can have that filesystem.
pub(super) fn with_filesystem(parameters: Parameters, capabilities: &[VolumeCapability]) -> Result<Parameters, Fault> {
    capabilities.iter().try_fold(parameters, |parameters, capability| match &capability.access_type {
        Some(AccessType::Mount(mount)) => parameters.with_filesystem(&mount.fs_type),
        _ => Ok(parameters),
    })
}

fn sharing(mode: i32) -> Result<Sharing, Fault> {
    match AccessMode::try_from(mode) {
        Ok(AccessMode::SingleNodeWriter | AccessMode::SingleNodeSingleWriter) => Ok(Sharing::OneTarget),
        Ok(AccessMode::SingleNodeMultiWriter) => Ok(Sharing::ManyTargets),
        Ok(AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly) => Ok(Sharing::ReadersOnly),
        Ok(mode @ (AccessMode::MultiNodeSingleWriter | AccessMode::MultiNodeMultiWriter)) => {
            Err(Fault::unsupported(format!(
                "access mode {} is not supported: a local volume is available on one node only",
                mode.as_str_name()
            )))
        }
        Ok(AccessMode::Unknown) | Err(_) => {
            Err(Fault::invalid(format!("volume_capability.access_mode.mode {mode} is unknown")))
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::FaultKind;
    use bulkhead_protocol::ErrorKind;

    use super::*;
    use crate::proto::csi::volume_capability::{self, BlockVolume, MountVolume};

    fn capability(access_type: AccessType, mode: AccessMode) -> VolumeCapability {
        let access_mode = Some(volume_capability::AccessMode { mode: mode as i32 });
        VolumeCapability { access_type: Some(access_type), access_mode }
    }

    fn block(mode: AccessMode) -> VolumeCapability {
        capability(AccessType::Block(BlockVolume {}), mode)
    }

    fn mount(fs_type: &str, flags: &[&str], group: &str) -> VolumeCapability {
        let mount = MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            volume_mount_group: group.to_owned(),
        };
        capability(AccessType::Mount(mount), AccessMode::SingleNodeWriter)
    }

    fn kind(capability: &VolumeCapability) -> ErrorKind {
        match access(Some(capability)).unwrap_err().kind {
            FaultKind::Typed(kind) => kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn whatever_is_missing_is_named() {
        assert!(access(None).unwrap_err().to_string().contains("volume_capability is missing"));
        let mut none = block(AccessMode::SingleNodeWriter);
        none.access_type = None;
        assert!(access(Some(&none)).unwrap_err().to_string().contains("access_type is missing"));
        let mut none = block(AccessMode::SingleNodeWriter);
        none.access_mode = None;
        assert!(access(Some(&none)).unwrap_err().to_string().contains("access_mode is missing"));
        let unknown = block(AccessMode::Unknown);
        assert!(access(Some(&unknown)).unwrap_err().to_string().contains("mode is missing"));
    }

    #[test]
    fn access_modes() {
        let shared = |mode| access(Some(&block(mode))).unwrap();
        let access = |sharing, read_only| Access::Block { sharing, read_only };
        assert_eq!(shared(AccessMode::SingleNodeWriter), access(Sharing::OneTarget, false));
        assert_eq!(shared(AccessMode::SingleNodeSingleWriter), access(Sharing::OneTarget, false));
        assert_eq!(shared(AccessMode::SingleNodeMultiWriter), access(Sharing::ManyTargets, false));
        assert_eq!(shared(AccessMode::SingleNodeReaderOnly), access(Sharing::ReadersOnly, true));
        assert_eq!(shared(AccessMode::MultiNodeReaderOnly), access(Sharing::ReadersOnly, true));
    }

    #[test]
    fn writers_on_many_nodes_are_not_supported() {
        assert_eq!(kind(&block(AccessMode::MultiNodeSingleWriter)), ErrorKind::Unsupported);
        assert_eq!(kind(&block(AccessMode::MultiNodeMultiWriter)), ErrorKind::Unsupported);
        let mut odd = block(AccessMode::Unknown);
        odd.access_mode = Some(volume_capability::AccessMode { mode: 42 });
        assert_eq!(kind(&odd), ErrorKind::Invalid);
    }

    #[test]
    fn mounts() {
        access(Some(&mount("xfs", &["noatime", "ro"], ""))).unwrap();
        assert_eq!(kind(&mount("btrfs", &[], "")), ErrorKind::Unsupported);
        assert_eq!(kind(&mount("", &["suid"], "")), ErrorKind::Invalid);
        assert_eq!(kind(&mount("", &["ro"; 2049], "")), ErrorKind::Invalid);
        assert_eq!(kind(&mount("", &[], "1000")), ErrorKind::Unsupported);
    }

    #[test]
    fn a_volume_is_of_one_kind() {
        let (device, directory) = (block(AccessMode::SingleNodeWriter), mount("", &[], ""));
        assert_eq!(common_mode(&[device.clone(), device.clone()]), Ok(Mode::Block));
        assert_eq!(common_mode(std::slice::from_ref(&directory)), Ok(Mode::Directory));
        assert!(common_mode(&[device, directory]).unwrap_err().is(ErrorKind::Invalid));
        assert!(common_mode(&[]).unwrap_err().to_string().contains("volume_capabilities is missing"));
    }
}
