//! The parameters of a storage class: a closed set of keys.

use bulkhead_protocol::{BlockSize, DirectoryMode, Inodes, Pool, PoolName, VolumeKind};
use bulkhead_protocol::{Bytes, ErrorKind};

use super::access::{Mode, check_filesystem};
use super::attributes::{Attributes, parse_inodes};
use super::size::{MINIMUM_BYTES, MINIMUM_IMAGE_BYTES, default_inodes};
use super::{Fault, FaultKind};

const ACCEPTED: &str = "pool, backing, sparse, dirMode, inodes, blockSize, csi.storage.k8s.io/fstype";

/// The filesystem of a volume that has one of its own.
const OWN_FILESYSTEM: &str = "xfs";

/// The pool to use when none is named and there are several.
const DEFAULT_POOL: &str = "default";

/// The default permission bits of a directory volume.
const DEFAULT_DIRECTORY_MODE: u16 = 0o755;

/// What is behind a volume that is used as a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backing {
    /// A directory of the pool, with a quota.
    #[default]
    Directory,
    /// A filesystem of its own, in an image file.
    Image,
}

/// The settings of a storage class. A class whose volumes are directories of the pool serves block volumes too, so
/// settings for the other kind are accepted and have no effect. One with filesystems in images serves nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    pool: Option<PoolName>,
    backing: Backing,
    sparse: bool,
    directory_mode: Option<DirectoryMode>,
    inodes: Option<Inodes>,
    block_size: Option<BlockSize>,
    filesystem: Option<String>,
}

impl Parameters {
    /// The parameters with these keys and values.
    ///
    /// # Errors
    /// On an unknown key, with a list of the accepted ones, and on an invalid value.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Fault> {
        let mut parameters = Self::default();
        for (key, value) in pairs {
            let wrong = |wanted: &str| Fault::invalid(format!("invalid parameter {key}={value:?}: {wanted}"));
            match key {
                "pool" => parameters.pool = Some(value.parse().map_err(|_| wrong("give the name of a pool"))?),
                "backing" => {
                    parameters.backing = match value {
                        "directory" => Backing::Directory,
                        "image" => Backing::Image,
                        _ => return Err(wrong("give directory or image")),
                    }
                }
                "sparse" => parameters.sparse = value.parse().map_err(|_| wrong("give true or false"))?,
                "dirMode" => {
                    let mode = octal(value).and_then(|bits| DirectoryMode::try_from(bits).ok());
                    let wanted = "give an octal number from 0000 to 1777";
                    parameters.directory_mode = Some(mode.ok_or_else(|| wrong(wanted))?);
                }
                "inodes" => parameters.inodes = Some(parse_inodes("parameter inodes", value)?),
                "blockSize" => {
                    parameters.block_size = Some(match value {
                        "512" => BlockSize::B512,
                        "4096" => BlockSize::B4096,
                        _ => return Err(wrong("give 512 or 4096")),
                    });
                }
                "csi.storage.k8s.io/fstype" => parameters = parameters.with_filesystem(value)?,
                // The claim's identity, which the provisioner may add: it does not affect the volume.
                "csi.storage.k8s.io/pvc/name" | "csi.storage.k8s.io/pvc/namespace" | "csi.storage.k8s.io/pv/name" => {}
                _ => {
                    return Err(Fault::invalid(format!(
                        "unknown parameter {key:?}; supported parameters are {ACCEPTED}"
                    )));
                }
            }
        }
        parameters.check_backing()?;
        Ok(parameters)
    }

    /// Refuses what would have no effect, or no sense, with a filesystem in an image.
    fn check_backing(&self) -> Result<(), Fault> {
        let reason = match self {
            Self { backing: Backing::Directory, .. } => return Ok(()),
            Self { inodes: Some(_), .. } => "inodes: the volume has as many as its own filesystem has room for",
            Self { filesystem: Some(name), .. } if name != OWN_FILESYSTEM => {
                return Err(Fault::unsupported(format!(
                    "filesystem type {name} is not available with backing=image: the filesystem in an image is {OWN_FILESYSTEM}; leave the type empty"
                )));
            }
            Self { .. } => return Ok(()),
        };
        Err(Fault::invalid(format!("backing=image cannot be combined with {reason}; remove one of the two")))
    }

    /// These parameters with the attributes of a volume of this mode, which come before those of the class.
    ///
    /// # Errors
    /// When such a volume does not have them.
    pub fn with_attributes(mut self, attributes: &Attributes, mode: Mode) -> Result<Self, Fault> {
        // The size does not decide what kind it is.
        attributes.check(&self.kind(mode, Bytes::MAX))?;
        self.inodes = attributes.inodes.or(self.inodes);
        self.sparse &= !attributes.thick;
        Ok(self)
    }

    /// What is behind volumes of this mode; where it is not known, behind directories. A block volume takes nothing of its
    /// pool but room, as a directory does.
    pub fn backing(&self, mode: Option<Mode>) -> Backing {
        if mode == Some(Mode::Block) { Backing::Directory } else { self.backing }
    }

    /// The smallest size of a volume of this mode with these parameters, in bytes.
    pub fn minimum_bytes(&self, mode: Mode) -> u64 {
        match self.backing(Some(mode)) {
            Backing::Directory => MINIMUM_BYTES,
            Backing::Image => MINIMUM_IMAGE_BYTES,
        }
    }

    /// These parameters, for volumes with this filesystem; empty for any.
    ///
    /// # Errors
    /// When no such volume can have it, or the parameters already name another one.
    pub fn with_filesystem(mut self, name: &str) -> Result<Self, Fault> {
        check_filesystem(name)?;
        if !self.allows_filesystem(name) {
            return Err(Fault::invalid("two filesystem types are requested for one volume: name one, or none"));
        }
        if !name.is_empty() {
            self.filesystem = Some(name.to_owned());
        }
        self.check_backing()?;
        Ok(self)
    }

    /// Returns whether these parameters allow a volume with this filesystem; empty if that is not known.
    pub fn allows_filesystem(&self, name: &str) -> bool {
        name.is_empty() || self.filesystem.as_ref().is_none_or(|wanted| wanted == name)
    }

    /// The kind of volume they describe, if there are any of this mode.
    pub fn kind(&self, mode: Mode, size: Bytes) -> VolumeKind {
        let directory_mode = self.directory_mode.unwrap_or_else(default_mode);
        match mode {
            Mode::Directory if self.backing == Backing::Image => {
                VolumeKind::Filesystem { sparse: self.sparse, mode: directory_mode }
            }
            Mode::Directory => VolumeKind::Directory {
                inodes: self.inodes.unwrap_or_else(|| default_inodes(size)),
                mode: directory_mode,
            },
            Mode::Block => {
                VolumeKind::Image { sparse: self.sparse, block_size: self.block_size.unwrap_or(BlockSize::B512) }
            }
        }
    }

    /// The pool they name: by default the only one, or the one called `default`.
    ///
    /// # Errors
    /// When there is no such pool, when none is named and the choice is ambiguous, and when it has a filesystem other
    /// than the one they name.
    pub fn pool<'a>(&self, pools: &'a [Pool]) -> Result<&'a PoolName, Fault> {
        let pool = self.named_pool(pools)?;
        // A pool that is not served has none; any request to it says why. An image can be in any pool.
        if self.backing == Backing::Image || self.allows_filesystem(pool.filesystem.as_str()) {
            return Ok(&pool.name);
        }
        Err(Fault::unsupported(format!(
            "filesystem type {} is not available: pool {} has {}; leave the type empty, or name another pool",
            self.filesystem.as_deref().unwrap_or_default(),
            pool.name,
            pool.filesystem.as_str()
        )))
    }

    fn named_pool<'a>(&self, pools: &'a [Pool]) -> Result<&'a Pool, Fault> {
        if pools.is_empty() {
            let kind = FaultKind::Typed(ErrorKind::PoolBroken);
            return Err(Fault::new(kind, "the privileged helper serves no pools: start it with --pool NAME=DIR"));
        }
        let names = || pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
        match &self.pool {
            Some(wanted) => pools.iter().find(|pool| pool.name == *wanted).ok_or_else(|| {
                let message = format!("pool {wanted} is not served on this node; use one of {}", names());
                Fault::new(FaultKind::NoPool, message)
            }),
            None => default_pool(pools).ok_or_else(|| {
                let message = format!(
                    "there are several pools and none is called default: set the parameter pool to one of {}",
                    names()
                );
                Fault::new(FaultKind::NoPool, message)
            }),
        }
    }

    /// Returns whether these parameters allow a volume in this pool.
    pub fn allows_pool(&self, pool: &PoolName) -> bool {
        self.pool.as_ref().is_none_or(|wanted| wanted == pool)
    }
}

fn default_pool(pools: &[Pool]) -> Option<&Pool> {
    match pools {
        [only] => Some(only),
        several => several.iter().find(|pool| pool.name.as_str() == DEFAULT_POOL),
    }
}

fn default_mode() -> DirectoryMode {
    match DirectoryMode::try_from(DEFAULT_DIRECTORY_MODE) {
        Ok(mode) => mode,
        Err(_) => unreachable!("{DEFAULT_DIRECTORY_MODE:o} is a directory mode"),
    }
}

fn octal(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    if digits { u16::from_str_radix(text, 8).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{QuotaMode, Text};

    use super::*;

    fn pools(names: &[&str]) -> Vec<Pool> {
        let pool = |name: &&str| Pool {
            name: name.parse().unwrap(),
            quota: QuotaMode::Enforced,
            filesystem: Text::new(if *name == "gone" { "" } else { "xfs" }),
        };
        names.iter().map(pool).collect()
    }

    #[test]
    fn a_pool_with_another_filesystem_is_refused() {
        let wanted = |filesystem| Parameters::default().with_filesystem(filesystem).unwrap();
        for filesystem in ["", "xfs"] {
            assert_eq!(wanted(filesystem).pool(&pools(&["fast"])).unwrap().as_str(), "fast");
        }
        let fault = wanted("ext4").pool(&pools(&["fast"])).unwrap_err();
        assert!(fault.is(ErrorKind::Unsupported) && fault.to_string().contains("pool fast has xfs"), "{fault}");
        assert_eq!(wanted("ext4").pool(&pools(&["gone"])).unwrap().as_str(), "gone");
        assert!(Parameters::default().with_filesystem("btrfs").is_err());
        assert_eq!(wanted("ext4").with_filesystem("").unwrap(), wanted("ext4"));
        assert!(wanted("ext4").with_filesystem("xfs").unwrap_err().is(ErrorKind::Invalid));
    }

    #[test]
    fn everything_at_once() {
        let parameters = Parameters::parse([
            ("pool", "fast"),
            ("sparse", "true"),
            ("dirMode", "1770"),
            ("inodes", "5000"),
            ("blockSize", "4096"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("csi.storage.k8s.io/pvc/name", "claim"),
            ("csi.storage.k8s.io/pvc/namespace", "default"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ])
        .unwrap();
        let size = Bytes::try_from(1 << 30).unwrap();
        assert_eq!(
            parameters.kind(Mode::Directory, size),
            VolumeKind::Directory {
                inodes: Inodes::try_from(5000).unwrap(),
                mode: DirectoryMode::try_from(0o1770).unwrap()
            }
        );
        assert_eq!(
            parameters.kind(Mode::Block, size),
            VolumeKind::Image { sparse: true, block_size: BlockSize::B4096 }
        );
        assert_eq!(parameters.pool(&pools(&["default", "fast"])).unwrap().as_str(), "fast");
    }

    #[test]
    fn a_filesystem_in_an_image() {
        let size = Bytes::try_from(1 << 30).unwrap();
        let of = |more: &[(&'static str, &'static str)]| {
            Parameters::parse([("backing", "image")].into_iter().chain(more.iter().copied()))
        };
        let parameters = of(&[("sparse", "true"), ("dirMode", "0770"), ("csi.storage.k8s.io/fstype", "xfs")]).unwrap();
        let mode = DirectoryMode::try_from(0o770).unwrap();
        assert_eq!(parameters.kind(Mode::Directory, size), VolumeKind::Filesystem { sparse: true, mode });
        assert_eq!((parameters.minimum_bytes(Mode::Directory), parameters.backing(None)), (300 << 20, Backing::Image));
        let on_ext4 = Pool { filesystem: Text::new("ext4"), ..pools(&["fast"]).remove(0) };
        assert_eq!(parameters.pool(&[on_ext4]).unwrap().as_str(), "fast", "an image can be in any pool");
        let block = of(&[("sparse", "true"), ("blockSize", "4096")]).unwrap();
        let device = VolumeKind::Image { sparse: true, block_size: BlockSize::B4096 };
        assert_eq!((block.kind(Mode::Block, size), block.backing(Some(Mode::Block))), (device, Backing::Directory));
        assert_eq!(block.minimum_bytes(Mode::Block), MINIMUM_BYTES, "a device has an image anyway");
        for (key, value) in [("inodes", "5000"), ("csi.storage.k8s.io/fstype", "ext4")] {
            let fault = of(&[(key, value)]).unwrap_err().to_string();
            assert!(fault.contains("backing=image"), "{fault}");
            assert!(Parameters::parse([(key, value), ("backing", "image")]).is_err());
            Parameters::parse([(key, value), ("backing", "directory")]).unwrap();
        }
        assert!(of(&[]).unwrap().with_filesystem("ext4").unwrap_err().is(ErrorKind::Unsupported));
    }

    #[test]
    fn an_unknown_key_is_named_with_those_accepted() {
        let message = Parameters::parse([("Pool", "fast")]).unwrap_err().to_string();
        assert!(message.contains("\"Pool\"") && message.contains(ACCEPTED), "{message}");
    }

    #[test]
    fn values_are_judged() {
        for (key, value) in [
            ("pool", ""),
            ("pool", "../x"),
            ("backing", "Image"),
            ("sparse", "yes"),
            ("dirMode", "7777"),
            ("dirMode", "+755"),
            ("dirMode", "rwx"),
            ("dirMode", ""),
            ("inodes", "0"),
            ("inodes", "-1"),
            ("inodes", "4294967296"),
            ("blockSize", "1024"),
        ] {
            let fault = Parameters::parse([(key, value)]).unwrap_err();
            assert!(fault.is(ErrorKind::Invalid) && fault.to_string().contains(key), "{key}={value}");
        }
    }

    #[test]
    fn defaults() {
        let parameters = Parameters::default();
        let size = Bytes::try_from(1 << 20).unwrap();
        let VolumeKind::Directory { inodes, mode } = parameters.kind(Mode::Directory, size) else { panic!() };
        assert_eq!((inodes.get(), mode.get()), (1024, 0o755));
        assert_eq!(parameters.pool(&pools(&["fast"])).unwrap().as_str(), "fast");
        assert_eq!(parameters.pool(&pools(&["fast", "default"])).unwrap().as_str(), "default");
        let open = parameters.pool(&pools(&["fast", "slow"])).unwrap_err();
        assert!(open.kind == FaultKind::NoPool && open.to_string().contains("fast, slow"));
        assert!(parameters.pool(&[]).unwrap_err().is(ErrorKind::PoolBroken));
    }
}
