//! Making a volume, or finding the one that was made before.

use bulkhead_protocol::{Bytes, ErrorKind, NameHash, PoolName, Request, Usage, VolumeId, VolumeKind, VolumeSpec};

use super::access::Mode;
use super::size::default_inodes;
use super::{Fault, Parameters, SizeRange, Volumes, identify};

/// A volume that somebody wants to have.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// The name by which it is asked for; the same name asks for the same volume.
    pub name: String,
    /// Directory or device.
    pub mode: Mode,
    /// How large.
    pub range: SizeRange,
    /// What else.
    pub parameters: Parameters,
}

/// A volume that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provisioned {
    /// Its id.
    pub volume: VolumeId,
    /// The size it has.
    pub size: Bytes,
}

impl Volumes {
    /// Makes `new`, or finds it.
    ///
    /// # Errors
    /// `AlreadyExists` when a volume of that name is there and is not what is asked for.
    pub async fn provision(&self, new: NewVolume) -> Result<Provisioned, Fault> {
        let (volume, name_hash) = identify(&new.name)?;
        let size = new.range.choose()?;
        let _guard = self.in_flight.enter(&volume)?;
        let welcome = self.helper.welcome().await?;
        let pool = new.parameters.pool(welcome.pools.as_slice())?;
        let spec = VolumeSpec { size, kind: new.parameters.kind(new.mode, size), name_hash };
        let request = Request::Create { volume: volume.clone(), pool: pool.clone(), spec };
        let size = match self.helper.size(request).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::AlreadyExists) => {
                self.grown_since(&volume, pool, &new, name_hash).await?.ok_or(fault)?
            }
            outcome => outcome?,
        };
        if new.range.admits(size) {
            Ok(Provisioned { volume, size })
        } else {
            Err(Fault::already_exists(format!(
                "volume {volume} exists with {size} bytes, which is not in the range that is asked for"
            )))
        }
    }

    /// The size of a volume that differs from `new` only in having grown, and its default number of inodes with it.
    async fn grown_since(
        &self,
        volume: &VolumeId,
        pool: &PoolName,
        new: &NewVolume,
        name_hash: NameHash,
    ) -> Result<Option<Bytes>, Fault> {
        let Usage { pool: in_pool, spec, .. } = match self.helper.usage(volume, None).await.map_err(Fault::from) {
            // Deleted meanwhile: the next call makes a new one.
            Err(fault) if fault.is(ErrorKind::NotFound) => return Ok(None),
            usage => usage?,
        };
        let wanted = new.parameters.kind(new.mode, spec.size);
        let by_default =
            matches!(spec.kind, VolumeKind::Directory { inodes, .. } if inodes == default_inodes(spec.size));
        let same = in_pool == *pool && spec.name_hash == name_hash && spec.kind == wanted;
        Ok((same && by_default).then_some(spec.size))
    }
}
