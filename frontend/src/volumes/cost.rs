//! What a volume or a snapshot takes of its pool, by the helper's own reckoning, before it is made and afterwards.

use bulkhead_model::volumes::{Attributes, Fault, SizeRange, identify};
use bulkhead_protocol::{Bytes, ErrorKind, PoolName, PoolStatus, Snapshot, Usage, VolumeId, VolumeKind, VolumeSpec};

use super::capacity::promised;
use super::copy::kind_of_copy;
use super::grow::grown_inodes;
use super::{NewVolume, Volumes};

/// What a volume or a snapshot takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Its pool.
    pub pool: PoolName,
    /// What the pool promises to it, in bytes.
    pub bytes: u64,
    /// Whether it counts among the pool's filesystems in images.
    pub is_filesystem: bool,
}

/// What there is of a pool to share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// What is promised, and what may still be, in bytes.
    pub room: u64,
    /// How many filesystems in images it may have; 0 if none.
    pub filesystems: u32,
    /// How many volumes and snapshots it has.
    pub volumes: u32,
}

/// What a snapshot that refers to `allocated` bytes is promised: the helper reckons in the same way.
fn of_snapshot(allocated: u64) -> u64 {
    /// What one takes that refers to nothing.
    const EMPTY: u64 = 8192;
    allocated.saturating_add(allocated / 100).saturating_add(EMPTY)
}

fn of_volume(pool: PoolName, size: Bytes, kind: &VolumeKind, status: &PoolStatus) -> Cost {
    let is_filesystem = matches!(kind, VolumeKind::Filesystem { .. });
    Cost { pool, bytes: promised(size, kind, status.inode_size), is_filesystem }
}

impl From<&Snapshot> for Cost {
    fn from(taken: &Snapshot) -> Self {
        Self { pool: taken.pool.clone(), bytes: of_snapshot(taken.allocated), is_filesystem: false }
    }
}

impl Volumes {
    /// What there is of `pool` to share out.
    ///
    /// # Errors
    /// When the helper cannot say.
    pub async fn told(&self, pool: &PoolName) -> Result<Told, Fault> {
        let PoolStatus { promised, available, volumes, .. } = self.pool_status(pool).await?;
        let filesystems = self.counts(pool).await.filesystem_limit;
        Ok(Told { room: promised.saturating_add(available), filesystems, volumes })
    }

    /// What `new` is going to take.
    ///
    /// # Errors
    /// As when it is created.
    pub async fn cost(&self, new: &NewVolume) -> Result<Cost, Fault> {
        let (pool, size, kind) = match &new.source {
            None => {
                let size = new.range.choose(new.parameters.minimum_bytes(new.mode))?;
                (self.pool(&new.parameters).await?, size, new.parameters.kind(new.mode, size))
            }
            Some(source) => {
                let (volume, _) = identify(&new.name)?;
                let Usage { pool, spec: from, .. } = self.template(&volume, source).await?;
                let size = new.range.choose_copy(from.size)?;
                let wanted = new.parameters.kind(new.mode, size);
                (pool, size, kind_of_copy(source.id(), &from.kind, new.mode, wanted)?)
            }
        };
        let status = self.pool_status(&pool).await?;
        Ok(of_volume(pool, size, &kind, &status))
    }

    /// What `volume` takes. It may be a snapshot.
    ///
    /// # Errors
    /// `NotFound` when it does not exist.
    pub async fn cost_of(&self, volume: &VolumeId) -> Result<Cost, Fault> {
        let Usage { pool, spec, used_bytes, .. } = self.helper.usage(volume, None).await?;
        if let VolumeKind::Snapshot { .. } = spec.kind {
            return Ok(Cost { pool, bytes: of_snapshot(used_bytes.unwrap_or_default()), is_filesystem: false });
        }
        let status = self.pool_status(&pool).await?;
        Ok(of_volume(pool, spec.size, &spec.kind, &status))
    }

    /// What `volume` is going to take once it has grown to a size in `range`.
    ///
    /// # Errors
    /// As when it grows.
    pub async fn cost_of_growth(&self, volume: &VolumeId, range: SizeRange) -> Result<Cost, Fault> {
        let Usage { pool, spec: VolumeSpec { size, kind, .. }, .. } = self.helper.usage(volume, None).await?;
        let grown = range.grow(size)?;
        let kind = match kind {
            VolumeKind::Directory { inodes, mode } => {
                VolumeKind::Directory { inodes: grown_inodes(inodes, size, grown), mode }
            }
            other => other,
        };
        let status = self.pool_status(&pool).await?;
        Ok(of_volume(pool, grown, &kind, &status))
    }

    /// What `volume` is going to take once it has these attributes.
    ///
    /// # Errors
    /// `NotFound` when it does not exist.
    pub async fn cost_of_attributes(&self, volume: &VolumeId, attributes: &Attributes) -> Result<Cost, Fault> {
        let Usage { pool, spec, .. } = self.helper.usage(volume, None).await?;
        let kind = match (spec.kind, attributes.inodes) {
            (VolumeKind::Directory { mode, .. }, Some(inodes)) => VolumeKind::Directory { inodes, mode },
            (kind, _) => kind,
        };
        let status = self.pool_status(&pool).await?;
        Ok(of_volume(pool, spec.size, &kind, &status))
    }

    /// What a snapshot of `volume` is going to take, as long as nobody writes to it.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume.
    pub async fn cost_of_snapshot(&self, volume: &VolumeId) -> Result<Cost, Fault> {
        let Usage { pool, spec, .. } = self.helper.usage(volume, None).await?;
        let allocated = match self.helper.allocated(volume, spec.size).await.map_err(Fault::from) {
            // Nor can there be a snapshot of it, which is refused in other words.
            Err(fault) if fault.is(ErrorKind::Unsupported) => 0,
            allocated => allocated?,
        };
        Ok(Cost { pool, bytes: of_snapshot(allocated), is_filesystem: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_takes_something_even_of_nothing() {
        assert_eq!([0, 100 << 20].map(of_snapshot), [8192, (100 << 20) + (1 << 20) + 8192]);
    }
}
