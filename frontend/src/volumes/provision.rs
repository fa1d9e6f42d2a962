//! Creates a volume, or finds the one that was created before.

use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::{Fault, FaultKind, Mode, Parameters, Provisioned, SizeRange, default_inodes, identify};
use bulkhead_protocol::{Bytes, ErrorKind, NameHash, PoolName, Request, Usage, VolumeId, VolumeKind, VolumeSpec};

use super::fault::of_promise;
use super::{Source, Volumes};

/// A volume to be created.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// The caller's name for it; the same name means the same volume.
    pub name: String,
    /// Directory or device.
    pub mode: Mode,
    /// The acceptable sizes.
    pub range: SizeRange,
    /// Its other settings.
    pub parameters: Parameters,
    /// What it begins as a copy of; without one, it begins empty.
    pub source: Option<Source>,
}

impl Volumes {
    /// Creates `new`, or finds it.
    ///
    /// # Errors
    /// `AlreadyExists` when a volume of this name exists with other properties.
    pub async fn provision(&self, new: NewVolume) -> Result<Provisioned, Fault> {
        let (volume, name_hash) = identify(&new.name)?;
        if let Some(source) = &new.source {
            return self.provision_copy(&volume, &new, name_hash, source).await;
        }
        let size = new.range.choose(new.parameters.minimum_bytes(new.mode))?;
        let _guard = self.in_flight.enter(&volume).await?;
        let welcome = self.helper.welcome().await?;
        let pool = new.parameters.pool(welcome.pools.as_slice())?;
        self.check_mounted(&volume, pool).await?;
        let spec = VolumeSpec { size, kind: new.parameters.kind(new.mode, size), name_hash };
        let request = Request::Create { volume: volume.clone(), pool: pool.clone(), spec };
        let size = match self.helper.size(request).await.map_err(|error| of_promise(error, pool)) {
            Err(fault) if fault.is(ErrorKind::AlreadyExists) => {
                self.grown_since(&volume, pool, &new, name_hash).await?.ok_or(fault)?
            }
            Err(fault) if fault.is(ErrorKind::Unsupported) && spec.kind.since_version() > 1 => {
                // Another node's pool may be.
                return Err(Fault::new(FaultKind::NoPool, fault.to_string()));
            }
            outcome => outcome?,
        };
        self.provisioned(volume, &spec.kind, size, &new)
    }

    /// Checks that `pool` is one in which something new may be made. What is in one that is not mounted any more works only
    /// until the helper ends, and then nobody finds it. A volume that is there already is found.
    pub(super) async fn check_mounted(&self, volume: &VolumeId, pool: &PoolName) -> Result<(), Fault> {
        if !self.health().borrow().is_unmounted(pool) {
            return Ok(());
        }
        match self.helper.usage(volume, None).await.map_err(Fault::from) {
            Ok(_) => Ok(()),
            // While another pool is not served, it may be there.
            Err(fault) if fault.is(ErrorKind::NotFound) || fault.is(ErrorKind::PoolBroken) => Err(Fault::new(
                FaultKind::Typed(ErrorKind::PoolBroken),
                format!(
                    "nothing is made in pool {pool}, which is not mounted at its directory on the host any more: mount it there again"
                ),
            )),
            Err(fault) => Err(fault),
        }
    }

    /// The volume that has been made or found, if its size is one that was asked for.
    pub(super) fn provisioned(
        &self,
        volume: VolumeId,
        kind: &VolumeKind,
        size: Bytes,
        new: &NewVolume,
    ) -> Result<Provisioned, Fault> {
        self.kinds.record(&volume, kind);
        if new.range.admits(size) {
            Ok(Provisioned { volume, size })
        } else {
            Err(Fault::already_exists(format!(
                "volume {volume} exists with {}, which is outside the requested range",
                Quantity::from(size.get())
            )))
        }
    }

    /// The size of a volume that differs from `new` only because it has grown, along with its default number of inodes.
    async fn grown_since(
        &self,
        volume: &VolumeId,
        pool: &PoolName,
        new: &NewVolume,
        name_hash: NameHash,
    ) -> Result<Option<Bytes>, Fault> {
        let Usage { pool: in_pool, spec, .. } = match self.helper.usage(volume, None).await.map_err(Fault::from) {
            // Deleted in the meantime: the next call creates a new one.
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
