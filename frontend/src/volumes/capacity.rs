//! The space that is left for new volumes.

use bulkhead_model::volumes::{Backing, Fault, Mode, Parameters, PoolCondition};
use bulkhead_protocol::{Bytes, Condition, ErrorKind, PoolName, PoolStatus, SIZE_STEP, VolumeKind};

use super::Volumes;

/// Space for new volumes with the same settings, in bytes: what they can have, after what the pool promises beyond that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// For all new volumes together.
    pub available: u64,
    /// For a single new volume.
    pub largest_volume: u64,
    /// The size of the pool's filesystem.
    pub total: u64,
}

/// What a pool can still promise, whatever is made of it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    available: u64,
    largest_volume: u64,
    total: u64,
    inode_size: u32,
    /// Whether the pool is not configured for such volumes at all.
    pub is_unsuited: bool,
}

impl From<&PoolStatus> for Room {
    fn from(status: &PoolStatus) -> Self {
        let PoolStatus { available, largest_volume, total, inode_size, .. } = *status;
        if status.conditions.as_slice().contains(&Condition::Unmounted) {
            // Nothing new is made there: see `Volumes::check_mounted`.
            return Self { total, inode_size, ..Self::default() };
        }
        Self { available, largest_volume, total, inode_size, is_unsuited: false }
    }
}

impl Room {
    /// The space for volumes of this mode with these parameters. A pool promises more to a directory than to a device of
    /// the same size, so where the mode is not known, this is the space for directories.
    pub fn capacity(&self, parameters: &Parameters, mode: Option<Mode>) -> Capacity {
        let mode = mode.unwrap_or(Mode::Directory);
        let available = largest(self.available, |size| promised(size, &parameters.kind(mode, size), self.inode_size));
        // No smaller volume can be made.
        let possible = |size| if size < parameters.minimum_bytes(mode) { 0 } else { size };
        let largest_volume = possible(available.min(self.largest_volume));
        Capacity { available: possible(available), largest_volume, total: self.total }
    }
}

/// Returns what a pool promises to a volume.
pub(super) fn promised(size: Bytes, kind: &VolumeKind, inode_size: u32) -> u64 {
    let inodes = match kind {
        VolumeKind::Directory { inodes, .. } => inodes.get(),
        VolumeKind::Image { .. } | VolumeKind::Filesystem { .. } | VolumeKind::Snapshot { .. } => 0,
    };
    size.get().saturating_add(inodes.saturating_mul(inode_size.into()))
}

/// The largest size that is promised at most `room`; zero if there is none. `promised` is larger for a larger size.
fn largest(room: u64, promised: impl Fn(Bytes) -> u64) -> u64 {
    let fits = |steps: u64| Bytes::try_from(steps * SIZE_STEP).is_ok_and(|size| promised(size) <= room);
    let (mut some, mut too_many) = (0, room / SIZE_STEP + 1);
    while too_many - some > 1 {
        let middle = some + (too_many - some) / 2;
        if fits(middle) {
            some = middle;
        } else {
            too_many = middle;
        }
    }
    some * SIZE_STEP
}

impl Volumes {
    /// The space for volumes of this mode, if it is known, with these parameters.
    ///
    /// # Errors
    /// When they do not select a pool that is served, in which case no such volume could be created either.
    pub async fn capacity(&self, parameters: &Parameters, mode: Option<Mode>) -> Result<Capacity, Fault> {
        match self.pool(parameters).await {
            Ok(pool) => Ok(self.room(&pool, parameters.backing(mode)).await?.capacity(parameters, mode)),
            Err(fault) => without_broken_pools(fault),
        }
    }

    /// The pool that these parameters select.
    ///
    /// # Errors
    /// When they select none that is served.
    pub async fn pool(&self, parameters: &Parameters) -> Result<PoolName, Fault> {
        let welcome = self.helper.welcome().await?;
        parameters.pool(welcome.pools.as_slice()).cloned()
    }

    /// The room in `pool` for volumes with this behind them.
    ///
    /// # Errors
    /// When the helper cannot say.
    pub async fn room(&self, pool: &PoolName, backing: Backing) -> Result<Room, Fault> {
        let room = match self.pool_status(pool).await {
            Ok(status) => Room::from(&status),
            Err(fault) => return without_broken_pools(fault),
        };
        if backing == Backing::Directory {
            return Ok(room);
        }
        match self.helper.counts(pool).await.map_err(Fault::from) {
            Ok(counts) if counts.filesystems < counts.filesystem_limit => Ok(room),
            // It has as many as it may have, which may be none.
            Ok(counts) => Ok(Room { total: room.total, is_unsuited: counts.filesystem_limit == 0, ..Room::default() }),
            Err(fault) => without_broken_pools(fault),
        }
    }

    /// The space and the conditions of `pool`. A condition that has changed is reported.
    ///
    /// # Errors
    /// When the helper cannot say.
    pub(super) async fn pool_status(&self, pool: &PoolName) -> Result<PoolStatus, Fault> {
        let answer = self.helper.pool_status(pool).await.map_err(Fault::from);
        match &answer {
            Ok(status) => self.conditions.record(pool, PoolCondition::all_of(status)),
            Err(fault) => {
                if let Some(condition) = self.condition_of(pool, fault) {
                    self.conditions.record(pool, [condition]);
                }
            }
        }
        answer
    }
}

/// A pool that is not served has no space.
fn without_broken_pools<T: Default>(fault: Fault) -> Result<T, Fault> {
    let none = fault.is(ErrorKind::PoolBroken) || fault.is(ErrorKind::Unsupported);
    if none { Ok(T::default()) } else { Err(fault) }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::MINIMUM_BYTES;

    use super::*;

    /// What XFS takes for each inode.
    const INODE: u32 = 512;

    fn room(available: u64, inode_size: u32) -> Room {
        Room { available, largest_volume: available, total: 1 << 50, inode_size, is_unsuited: false }
    }

    /// Returns what a pool promises to a volume of this size, as it is created.
    fn taken(size: u64, parameters: &Parameters, mode: Mode) -> u64 {
        let size = Bytes::try_from(size).unwrap();
        promised(size, &parameters.kind(mode, size), INODE)
    }

    #[test]
    fn the_capacity_fits_and_one_step_more_does_not() {
        let many_inodes = Parameters::parse([("inodes", "100000")]).unwrap();
        for parameters in [Parameters::default(), many_inodes] {
            for mode in [Mode::Directory, Mode::Block] {
                for available in [60 << 20, (1 << 30) + 4096, 721 << 20, 100 << 30, (1 << 50) - 4096, 1 << 53] {
                    let capacity = room(available, INODE).capacity(&parameters, Some(mode));
                    assert_eq!(capacity.available, capacity.largest_volume);
                    assert!(taken(capacity.available, &parameters, mode) <= available, "{mode:?} {available}");
                    assert!(
                        taken(capacity.available + SIZE_STEP, &parameters, mode) > available,
                        "{mode:?} {available}"
                    );
                }
            }
        }
    }

    #[test]
    fn inodes_take_space_from_directories_only() {
        let room = room(33 << 30, INODE);
        let of = |mode| room.capacity(&Parameters::default(), mode).largest_volume;
        // One inode for each 16 KiB takes a 32nd.
        assert_eq!((of(Some(Mode::Directory)), of(Some(Mode::Block))), (32 << 30, 33 << 30));
        assert_eq!(of(None), 32 << 30, "it may become a directory");
        assert_eq!(Room { inode_size: 0, ..room }.capacity(&Parameters::default(), None).available, 33 << 30);
    }

    #[test]
    fn a_filesystem_in_an_image_takes_its_size_and_is_not_as_small_as_a_device() {
        let image = Parameters::parse([("backing", "image")]).unwrap();
        let of = |available, mode| room(available, INODE).capacity(&image, mode).largest_volume;
        assert_eq!((of(1 << 30, None), of(1 << 30, Some(Mode::Block))), (1 << 30, 1 << 30));
        assert_eq!((of(300 << 20, None), of((300 << 20) - 4096, None)), (300 << 20, 0));
        assert_eq!(of((300 << 20) - 4096, Some(Mode::Block)), (300 << 20) - 4096);
    }

    #[test]
    fn nothing_is_offered_that_could_not_be_made() {
        let of = |room: Room| room.capacity(&Parameters::default(), None);
        let least = MINIMUM_BYTES + 1024 * u64::from(INODE);
        assert_eq!(of(room(least, INODE)).available, MINIMUM_BYTES);
        for too_little in [0, 4096, least - 4096] {
            assert_eq!(of(room(too_little, INODE)), Capacity { total: 1 << 50, ..Capacity::default() }, "{too_little}");
        }
        let nearly_full = Room { largest_volume: 5 << 20, ..room(1 << 30, INODE) };
        assert_eq!(of(nearly_full).largest_volume, 5 << 20);
        assert_eq!(of(Room { largest_volume: 4096, ..nearly_full }).largest_volume, 0);
    }
}
