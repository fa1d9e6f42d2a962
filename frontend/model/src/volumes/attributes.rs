//! What can be changed about a volume that exists, apart from its size.

use bulkhead_protocol::{ErrorKind, Inodes, VolumeKind};

use super::{Fault, FaultKind};

/// The keys that can be given.
const SUPPORTED: &str = "inodes";

/// The attributes of a volume: those of a VolumeAttributesClass, which CSI calls mutable parameters. What is not given stays
/// as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// How many inodes a directory volume may use.
    pub inodes: Option<Inodes>,
}

impl Attributes {
    /// The attributes with these keys and values.
    ///
    /// # Errors
    /// On an unknown key, with a list of the supported ones, and on an invalid value.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Fault> {
        let mut attributes = Self::default();
        for (key, value) in pairs {
            match key {
                "inodes" => attributes.inodes = Some(parse_inodes("attribute inodes", value)?),
                _ => return Err(Fault::invalid(format!("unknown attribute {key:?}; supported: {SUPPORTED}"))),
            }
        }
        Ok(attributes)
    }

    /// Checks that a volume of this kind has such attributes.
    ///
    /// # Errors
    /// When one would have no effect.
    pub fn check(&self, kind: &VolumeKind) -> Result<(), Fault> {
        let reason = match kind {
            _ if self.inodes.is_none() => return Ok(()),
            VolumeKind::Directory { .. } => return Ok(()),
            VolumeKind::Image { .. } => "a block volume has no inodes",
            VolumeKind::Filesystem { .. } => "the volume has as many as its own filesystem has room for",
            VolumeKind::Snapshot { .. } => {
                let kind = FaultKind::Typed(ErrorKind::WrongKind);
                return Err(Fault::new(kind, "a snapshot is never modified: modify the volume that is made from it"));
            }
        };
        Err(Fault::invalid(format!("attribute inodes: {reason}; use a class of attributes without it")))
    }
}

/// The number of inodes that is given as `value` of `key`.
///
/// # Errors
/// When it is none.
pub fn parse_inodes(key: &str, value: &str) -> Result<Inodes, Fault> {
    let number = value.parse::<u64>().ok().and_then(|number| Inodes::try_from(number).ok());
    number.ok_or_else(|| Fault::invalid(format!("invalid {key}={value:?}: give a number from 1 to 4294967295")))
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{BlockSize, DirectoryMode, SnapshotOf};

    use super::*;

    #[test]
    fn only_known_attributes_with_valid_values() {
        assert_eq!(Attributes::parse([]).unwrap(), Attributes::default());
        assert_eq!(Attributes::parse([("inodes", "5000")]).unwrap().inodes.map(Inodes::get), Some(5000));
        for (key, value) in [("inodes", "0"), ("inodes", "many"), ("inodes", "4294967296"), ("Inodes", "1"), ("", "")] {
            let fault = Attributes::parse([(key, value)]).unwrap_err();
            assert!(fault.is(ErrorKind::Invalid) && fault.to_string().contains(key), "{fault}");
        }
        let unknown = Attributes::parse([("iops", "5")]).unwrap_err().to_string();
        assert_eq!(unknown, "unknown attribute \"iops\"; supported: inodes");
    }

    #[test]
    fn inodes_are_for_directories() {
        let inodes = Attributes::parse([("inodes", "5000")]).unwrap();
        let mode = DirectoryMode::try_from(0o755).unwrap();
        inodes.check(&VolumeKind::Directory { inodes: Inodes::try_from(1).unwrap(), mode }).unwrap();
        for kind in [
            VolumeKind::Image { sparse: false, block_size: BlockSize::B512 },
            VolumeKind::Filesystem { sparse: false, mode },
            VolumeKind::Snapshot { of: SnapshotOf::Filesystem },
        ] {
            inodes.check(&kind).unwrap_err();
            Attributes::default().check(&kind).unwrap();
        }
    }
}
