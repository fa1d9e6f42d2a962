//! How much of a volume is used, and whether it is healthy.

use bulkhead_protocol::{PoolName, QuotaMode, Usage, VolumeId, VolumeKind};

use super::access::Mode;
use super::{Fault, PoolCondition, Volumes};
use crate::quantity::for_people;

/// The health of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether it needs attention.
    pub abnormal: bool,
    /// A description; never empty.
    pub message: String,
}

/// The state of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// As the helper reports it.
    pub usage: Usage,
    /// Its health.
    pub condition: Condition,
    /// Its pool's filesystem; empty if that is not served.
    pub filesystem: String,
}

impl Volumes {
    /// Measures `volume`, which must be published at `path` if one is given.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume, or it is not there.
    pub async fn measure(&self, volume: &VolumeId, path: Option<&str>) -> Result<Measured, Fault> {
        let target = match path {
            Some(path) => Some(self.published_at(path).await?),
            None => None,
        };
        let outcome = self.helper.usage(volume, target).await.map_err(Fault::from);
        let welcome = self.helper.welcome().await?;
        let pool = |name: &PoolName| welcome.pools.as_slice().iter().find(|pool| pool.name == *name);
        let filesystem = |name| pool(name).map(|pool| pool.filesystem.as_str().to_owned()).unwrap_or_default();
        let usage = match outcome {
            Ok(usage) => usage,
            Err(fault) => {
                let (usage, condition) = self.unmeasurable(volume, fault)?;
                return Ok(Measured { filesystem: filesystem(&usage.pool), usage, condition });
            }
        };
        let enforced = pool(&usage.pool).is_some_and(|pool| pool.quota == QuotaMode::Enforced);
        let condition = condition(&usage, enforced);
        if path.is_some() {
            self.measurements.note(volume, &usage);
            self.conditions.note_volume(volume, &usage.pool, &condition);
        }
        Ok(Measured { filesystem: filesystem(&usage.pool), usage, condition })
    }

    /// What to say of a volume in use whose pool does not let it be measured: a kubelet would make nothing of an error.
    fn unmeasurable(&self, volume: &VolumeId, fault: Fault) -> Result<(Usage, Condition), Fault> {
        match (PoolCondition::of_fault(&fault), self.measurements.last(volume)) {
            (Some(failure), Some(usage)) => {
                let condition = Condition { abnormal: true, message: failure.text };
                self.conditions.note_volume(volume, &usage.pool, &condition);
                Ok((usage, condition))
            }
            _ => Err(fault),
        }
    }
}

impl Measured {
    /// Directory or device.
    pub fn mode(&self) -> Mode {
        Mode::of(&self.usage.spec.kind)
    }

    /// The limit on its inodes; none for a device.
    pub fn inodes(&self) -> Option<u64> {
        match self.usage.spec.kind {
            VolumeKind::Directory { inodes, .. } => Some(inodes.get()),
            VolumeKind::Image { .. } => None,
        }
    }
}

/// How the helper says that a volume is in a pool without quotas.
const NOT_ENFORCED: &str = "sizes are not enforced in this pool";

fn condition(usage: &Usage, enforced: bool) -> Condition {
    let reported = usage.condition.as_str();
    let message = if !reported.is_empty() {
        for_people(reported)
    } else if enforced || Mode::of(&usage.spec.kind) == Mode::Block {
        "healthy".to_owned()
    } else {
        format!("pool {} has no quotas: the volume's size is not enforced", usage.pool)
    };
    // A pool is set up that way on purpose: nothing about it needs attention.
    let is_notice = !enforced && reported.starts_with(NOT_ENFORCED);
    Condition { abnormal: !reported.is_empty() && !is_notice, message }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{Bytes, NameHash, Text, VolumeSpec};

    use super::*;
    use crate::volumes::size::default_inodes;

    fn reported(condition: &str, enforced: bool) -> bool {
        let size = Bytes::try_from(1 << 30).unwrap();
        let kind = VolumeKind::Directory { inodes: default_inodes(size), mode: 0o755.try_into().unwrap() };
        let usage = Usage {
            pool: "default".parse().unwrap(),
            spec: VolumeSpec { size, kind, name_hash: NameHash([0; 32]) },
            used_bytes: None,
            available_bytes: None,
            used_inodes: None,
            targets: 0,
            condition: Text::new(condition),
        };
        super::condition(&usage, enforced).abnormal
    }

    #[test]
    fn a_pool_without_quotas_makes_no_volume_abnormal() {
        let notice = "sizes are not enforced in this pool: it is configured with quota=none";
        assert!(!reported(notice, false));
        assert!(reported(notice, true), "the pool is said to have quotas");
        assert!(reported("the pool's filesystem has shut down after an error", false));
        assert!(!reported("", true) && !reported("", false));
    }
}
