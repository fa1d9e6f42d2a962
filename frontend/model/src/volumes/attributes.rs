//! What can be changed about a volume that exists, apart from its size.

use bulkhead_protocol::{ErrorKind, Inodes, VolumeKind};

use super::{Fault, FaultKind};

/// The keys that can be given.
const SUPPORTED: &str = "inodes, allocation";

/// The attributes of a volume: those of a VolumeAttributesClass, which CSI calls mutable parameters. What is not given stays
/// as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// How many inodes a directory volume may use.
    pub inodes: Option<Inodes>,
    /// Whether all of its image is allocated.
    pub thick: bool,
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
                "allocation" if value == "thick" => attributes.thick = true,
                "allocation" => {
                    return Err(Fault::invalid(format!(
                        "invalid attribute allocation={value:?}: give thick; what is allocated stays allocated"
                    )));
                }
                _ => return Err(Fault::invalid(format!("unknown attribute {key:?}; supported: {SUPPORTED}"))),
            }
        }
        Ok(attributes)
    }

    /// Returns whether a volume of this kind has them already.
    pub fn are_those_of(&self, kind: &VolumeKind) -> bool {
        match *kind {
            VolumeKind::Directory { inodes, .. } => self.inodes.is_none_or(|wanted| wanted == inodes) && !self.thick,
            VolumeKind::Image { sparse, .. } | VolumeKind::Filesystem { sparse, .. } => {
                self.inodes.is_none() && !(self.thick && sparse)
            }
            VolumeKind::Snapshot { .. } => *self == Self::default(),
        }
    }

    /// Checks that a volume of this kind has such attributes.
    ///
    /// # Errors
    /// When one would have no effect.
    pub fn check(&self, kind: &VolumeKind) -> Result<(), Fault> {
        let wrong = |key, reason| {
            Err(Fault::invalid(format!("attribute {key}: {reason}; use a class of attributes without it")))
        };
        let is_any = self.inodes.is_some() || self.thick;
        match kind {
            VolumeKind::Snapshot { .. } if is_any => {
                let kind = FaultKind::Typed(ErrorKind::WrongKind);
                Err(Fault::new(kind, "a snapshot is never modified: modify the volume that is made from it"))
            }
            VolumeKind::Directory { .. } if self.thick => {
                wrong("allocation", "a directory is not allocated beforehand")
            }
            VolumeKind::Image { .. } if self.inodes.is_some() => wrong("inodes", "a block volume has no inodes"),
            VolumeKind::Filesystem { .. } if self.inodes.is_some() => {
                wrong("inodes", "the volume has as many as its own filesystem has room for")
            }
            _ => Ok(()),
        }
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
        for (key, value) in [
            ("inodes", "0"),
            ("inodes", "many"),
            ("inodes", "4294967296"),
            ("Inodes", "1"),
            ("allocation", "thin"),
            ("", ""),
        ] {
            let fault = Attributes::parse([(key, value)]).unwrap_err();
            assert!(fault.is(ErrorKind::Invalid) && fault.to_string().contains(key), "{fault}");
        }
        let unknown = Attributes::parse([("iops", "5")]).unwrap_err().to_string();
        assert_eq!(unknown, "unknown attribute \"iops\"; supported: inodes, allocation");
    }

    #[test]
    fn a_volume_has_what_differs_in_nothing() {
        let (inodes, thick) =
            (Attributes::parse([("inodes", "50")]).unwrap(), Attributes { inodes: None, thick: true });
        let mode = DirectoryMode::try_from(0o755).unwrap();
        let directory = |number: u64| VolumeKind::Directory { inodes: Inodes::try_from(number).unwrap(), mode };
        let image = |sparse| VolumeKind::Image { sparse, block_size: BlockSize::B512 };
        assert!(inodes.are_those_of(&directory(50)) && !inodes.are_those_of(&directory(51)));
        assert!(thick.are_those_of(&image(false)) && !thick.are_those_of(&image(true)));
        assert!(!thick.are_those_of(&directory(50)) && !inodes.are_those_of(&image(false)));
        assert!([directory(50), image(true)].iter().all(|kind| Attributes::default().are_those_of(kind)));
    }

    #[test]
    fn inodes_are_for_directories_and_allocation_for_images() {
        let inodes = Attributes::parse([("inodes", "5000")]).unwrap();
        let mode = DirectoryMode::try_from(0o755).unwrap();
        let thick = Attributes::parse([("allocation", "thick")]).unwrap();
        let directory = VolumeKind::Directory { inodes: Inodes::try_from(1).unwrap(), mode };
        inodes.check(&directory).unwrap();
        thick.check(&directory).unwrap_err();
        for kind in [
            VolumeKind::Image { sparse: false, block_size: BlockSize::B512 },
            VolumeKind::Filesystem { sparse: false, mode },
            VolumeKind::Snapshot { of: SnapshotOf::Filesystem },
        ] {
            inodes.check(&kind).unwrap_err();
            Attributes::default().check(&kind).unwrap();
            assert_eq!(thick.check(&kind).is_ok(), !matches!(kind, VolumeKind::Snapshot { .. }), "{kind:?}");
        }
    }
}
