//! Creates a volume that begins as a copy of a snapshot, or of another volume.

use bulkhead_model::volumes::{Fault, Mode, Provisioned};
use bulkhead_protocol::{ErrorKind, NameHash, Request, SnapshotOf, Usage, VolumeId, VolumeKind, VolumeSpec};

use super::fault::of_copy;
use super::{NewVolume, Volumes};

/// What a new volume begins as a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A snapshot.
    Snapshot(VolumeId),
    /// Another volume, as it is at that moment.
    Volume(VolumeId),
}

impl Source {
    /// Its id.
    pub fn id(&self) -> &VolumeId {
        match self {
            Self::Snapshot(id) | Self::Volume(id) => id,
        }
    }
}

impl Volumes {
    /// Creates `volume` as a copy of `source`, or finds it. The kind, the block size and the pool of a copy are its source's,
    /// whatever the parameters say by default; what they name must be the same.
    pub(super) async fn provision_copy(
        &self,
        volume: &VolumeId,
        new: &NewVolume,
        name_hash: NameHash,
        source: &Source,
    ) -> Result<Provisioned, Fault> {
        let id = source.id();
        if id == volume {
            return Err(Fault::already_exists(format!("{volume} exists: nothing is a copy of itself")));
        }
        let _guards = self.in_flight.enter_both(volume, id).await?;
        let Usage { pool, spec: from, .. } = self.template(volume, source).await?;
        if !new.parameters.allows_pool(&pool) {
            return Err(Fault::invalid(format!(
                "{id} is in pool {pool}, and so is every copy of it: use a class with that pool, or with none"
            )));
        }
        self.check_mounted(volume, &pool).await?;
        let size = new.range.choose_copy(from.size)?;
        let kind = kind_of_copy(id, &from.kind, new.mode, new.parameters.kind(new.mode, size))?;
        let spec = VolumeSpec { size, kind, name_hash };
        let request = Request::CreateFrom { volume: volume.clone(), pool: pool.clone(), spec, source: id.clone() };
        let size = self.helper.size(request).await.map_err(|error| of_copy(error, id, &pool))?;
        self.provisioned(volume.clone(), &kind, size, new)
    }

    /// Returns what a copy must be like: its source. Where that is gone, the copy itself, if an earlier call has made
    /// it.
    pub(super) async fn template(&self, volume: &VolumeId, source: &Source) -> Result<Usage, Fault> {
        let missing = match self.helper.usage(source.id(), None).await.map_err(Fault::from) {
            Ok(usage) => return source.checked(usage),
            Err(fault) if fault.is(ErrorKind::NotFound) => fault,
            Err(fault) => return Err(fault),
        };
        match self.helper.usage(volume, None).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Err(missing),
            usage => usage,
        }
    }
}

impl Source {
    /// Returns what is known of it, if it is what the caller takes it for.
    fn checked(&self, usage: Usage) -> Result<Usage, Fault> {
        let is_snapshot = matches!(usage.spec.kind, VolumeKind::Snapshot { .. });
        match self {
            Self::Snapshot(id) if !is_snapshot => Err(Fault::not_found(format!("no such snapshot: {id} is a volume"))),
            Self::Volume(id) if is_snapshot => Err(Fault::not_found(format!("no such volume: {id} is a snapshot"))),
            _ => Ok(usage),
        }
    }
}

/// The kind of a copy of something of kind `from`, where one of this mode is wanted, and of kind `wanted` by its
/// parameters.
pub(super) fn kind_of_copy(
    source: &VolumeId,
    from: &VolumeKind,
    mode: Mode,
    wanted: VolumeKind,
) -> Result<VolumeKind, Fault> {
    use VolumeKind::{Directory, Filesystem, Image, Snapshot};
    match (from, wanted) {
        (Image { block_size, .. } | Snapshot { of: SnapshotOf::Image { block_size } }, Image { sparse, .. }) => {
            Ok(Image { sparse, block_size: *block_size })
        }
        (from @ (Image { .. } | Filesystem { .. } | Snapshot { .. }), _) if Mode::of(from) != mode => {
            let is = Mode::of(from).as_str();
            Err(Fault::invalid(format!("{source} is, or is of, a {is} volume, and so is every copy of it")))
        }
        (Filesystem { .. } | Snapshot { .. }, Directory { .. }) => Err(Fault::invalid(format!(
            "{source} is, or is of, a volume with a filesystem in an image, and so is every copy of it: use a class with backing: image"
        ))),
        // What cannot be copied at all, the helper refuses.
        (_, wanted) => Ok(wanted),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::Parameters;
    use bulkhead_protocol::{BlockSize, Bytes, DirectoryMode};

    use super::*;

    #[test]
    fn a_copy_is_of_the_kind_of_its_source() {
        let source = "snap-1".parse().unwrap();
        let wanted = |backing, mode| {
            let parameters = Parameters::parse([("backing", backing), ("sparse", "true")]).unwrap();
            parameters.kind(mode, Bytes::try_from(1 << 30).unwrap())
        };
        let copied = |from, backing, mode| {
            kind_of_copy(&source, &from, mode, wanted(backing, mode)).map_err(|fault| fault.to_string())
        };
        let (block_size, mode) = (BlockSize::B4096, DirectoryMode::try_from(0o755).unwrap());
        let image = VolumeKind::Image { sparse: false, block_size };
        let filesystem = VolumeKind::Filesystem { sparse: false, mode };
        let of_image = VolumeKind::Snapshot { of: SnapshotOf::Image { block_size } };
        let of_filesystem = VolumeKind::Snapshot { of: SnapshotOf::Filesystem };
        for from in [image, of_image] {
            let copy = VolumeKind::Image { sparse: true, block_size };
            assert_eq!(copied(from, "directory", Mode::Block), Ok(copy), "its source's blocks, its own promise");
            for backing in ["directory", "image"] {
                assert!(copied(from, backing, Mode::Directory).unwrap_err().contains("a block volume"));
            }
        }
        for from in [filesystem, of_filesystem] {
            let copy = VolumeKind::Filesystem { sparse: true, mode };
            assert_eq!(copied(from, "image", Mode::Directory), Ok(copy));
            assert!(copied(from, "directory", Mode::Directory).unwrap_err().contains("backing: image"));
            assert!(copied(from, "directory", Mode::Block).unwrap_err().contains("a directory volume"));
        }
    }
}
