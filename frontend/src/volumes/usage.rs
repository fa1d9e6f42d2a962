//! How much of a volume is used, and whether it is healthy.

use bulkhead_model::volumes::{Ailment, Fault, Mode, PoolCondition};
use bulkhead_protocol::{Condition as Reported, PoolName, Usage, VolumeId, VolumeKind};

use super::Volumes;

/// The filesystem of a volume that has one of its own.
const OWN_FILESYSTEM: &str = "xfs";

/// The health of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it suffers from, if it needs attention.
    pub ailment: Option<Ailment>,
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
    /// The filesystem that its files are in: its own, or its pool's; empty if that is not served.
    pub filesystem: String,
}

impl Volumes {
    /// Measures `volume`, which must be published at `path` if one is given.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume, or it is not published there.
    pub async fn measure(&self, volume: &VolumeId, path: Option<&str>) -> Result<Measured, Fault> {
        let target = match path {
            Some(path) => Some(self.published_at(path).await?),
            None => None,
        };
        let outcome = self.helper.usage(volume, target).await.map_err(Fault::from);
        let welcome = self.helper.welcome().await?;
        let pool = |name: &PoolName| welcome.pools.as_slice().iter().find(|pool| pool.name == *name);
        let filesystem = |usage: &Usage| match usage.spec.kind {
            VolumeKind::Filesystem { .. } => OWN_FILESYSTEM.to_owned(),
            _ => pool(&usage.pool).map(|pool| pool.filesystem.as_str().to_owned()).unwrap_or_default(),
        };
        let usage = match outcome {
            Ok(usage) => usage,
            Err(fault) => {
                let (usage, condition) = self.unmeasurable(volume, fault)?;
                return Ok(Measured { filesystem: filesystem(&usage), usage, condition });
            }
        };
        if let VolumeKind::Snapshot { .. } = usage.spec.kind {
            return Err(Fault::not_found(format!("no such volume: {volume} is a snapshot")));
        }
        self.kinds.record(volume, &usage.spec.kind);
        let condition = condition(usage.condition.clone());
        if path.is_some() {
            self.measurements.record(volume, &usage);
            self.conditions.record_volume(volume, &usage.pool, &condition);
        }
        Ok(Measured { filesystem: filesystem(&usage), usage, condition })
    }

    /// Returns what to say about a volume in use whose pool does not let it be measured: a kubelet would ignore an
    /// error.
    fn unmeasurable(&self, volume: &VolumeId, fault: Fault) -> Result<(Usage, Condition), Fault> {
        match (PoolCondition::of_fault(&fault), self.measurements.last(volume)) {
            (Some(failure), Some(usage)) => {
                let condition = Condition { ailment: failure.ailment(), message: failure.to_string() };
                self.conditions.record_volume(volume, &usage.pool, &condition);
                Ok((usage, condition))
            }
            _ => Err(fault),
        }
    }
}

impl Condition {
    /// Returns whether it needs attention.
    pub fn is_abnormal(&self) -> bool {
        self.ailment.is_some()
    }
}

impl Measured {
    /// Directory or device.
    pub fn mode(&self) -> Mode {
        Mode::of(&self.usage.spec.kind)
    }

    /// The limit on its inodes; `None` for a device, and where nothing counts them.
    pub fn inodes(&self) -> Option<u64> {
        match self.usage.spec.kind {
            VolumeKind::Directory { inodes, .. } => Some(inodes.get()),
            VolumeKind::Filesystem { .. } => sum(self.usage.used_inodes, self.usage.available_inodes),
            VolumeKind::Image { .. } | VolumeKind::Snapshot { .. } => None,
        }
    }

    /// The size of the filesystem in its image, in bytes: less than the image has. `None` if there is none, or it is not
    /// mounted.
    pub fn inside(&self) -> Option<u64> {
        match self.usage.spec.kind {
            VolumeKind::Filesystem { .. } => sum(self.usage.used_bytes, self.usage.available_bytes),
            VolumeKind::Directory { .. } | VolumeKind::Image { .. } | VolumeKind::Snapshot { .. } => None,
        }
    }
}

fn sum(used: Option<u64>, available: Option<u64>) -> Option<u64> {
    Some(used?.saturating_add(available?))
}

/// Returns what it means for a volume that the helper reports this of it.
pub(super) fn condition(reported: Option<Reported>) -> Condition {
    match reported.map(PoolCondition::Reported) {
        None => Condition { ailment: None, message: "healthy".to_owned() },
        // A pool without quotas is set up that way on purpose: nothing about it needs attention.
        Some(reported) => Condition { ailment: reported.ailment(), message: reported.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_quotas_makes_no_volume_abnormal() {
        let abnormal = |reported| condition(Some(reported)).is_abnormal();
        assert!(!abnormal(Reported::NotEnforced));
        assert!(abnormal(Reported::ShutDown) && abnormal(Reported::Oversized { used: 1 }) && abnormal(Reported::Other));
        assert_eq!(condition(None), Condition { ailment: None, message: "healthy".to_owned() });
    }
}
