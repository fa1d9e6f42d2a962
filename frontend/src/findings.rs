//! What a frontend tells of single volumes of its node, beside its metrics.

use bulkhead_model::findings::{AbnormalVolume, Findings, OrphanedVolume};
use bulkhead_model::printable::printable;

use crate::volumes::Health;

/// How many volumes of each list are named.
const MOST: usize = 1000;

/// The longest message, in bytes.
const LONGEST: usize = 512;

impl From<&Health> for Findings {
    fn from(health: &Health) -> Self {
        // The volumes that cannot be used come first: they must not be among those that are cut off.
        let (missing, others): (Vec<_>, Vec<_>) =
            health.volumes.iter().partition(|(_, abnormal)| abnormal.is_missing() || abnormal.is_unserved());
        let abnormal = missing.into_iter().chain(others).take(MOST).map(|(volume, abnormal)| AbnormalVolume {
            volume: volume.to_string(),
            missing: abnormal.is_missing(),
            unserved: abnormal.is_unserved(),
            message: printable(&abnormal.message, LONGEST).into_owned(),
        });
        let orphans = health.orphans.iter().take(MOST).map(|(volume, orphan)| OrphanedVolume {
            volume: volume.to_string(),
            pool: orphan.pool.to_string(),
            bytes: orphan.bytes,
        });
        let more = [health.volumes.len(), health.orphans.len()].map(|all| all.saturating_sub(MOST)).iter().sum();
        Self { abnormal: abnormal.collect(), orphans: orphans.collect(), more }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::helper::Helper;
    use crate::volumes::Volumes;

    #[tokio::test]
    async fn what_is_missing_is_named_and_the_rest_is_counted() {
        let volumes = Volumes::new(Helper::new("/nonexistent"));
        let missing: BTreeSet<_> = (0..MOST + 7).map(|number| format!("vol-{number}").parse().unwrap()).collect();
        volumes.record_missing(&missing);
        let findings = Findings::from(&*volumes.health().borrow());
        assert_eq!((findings.abnormal.len(), findings.orphans.len(), findings.more), (MOST, 0, 7));
        let first = &findings.abnormal[0];
        assert!(first.missing && first.word() == "missing" && first.message.contains("does not exist"), "{first:?}");
        let text = serde_json::to_string(&findings).unwrap();
        assert!(text.len() < 1 << 20, "the reader's limit");
        assert_eq!(serde_json::from_str::<Findings>(&text).unwrap(), findings);
        assert_eq!(serde_json::from_str::<Findings>("{\"ofALaterRelease\":1}").unwrap(), Findings::default());
    }
}
