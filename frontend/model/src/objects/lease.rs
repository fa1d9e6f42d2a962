//! An agent's Lease, by which everybody can see whether it works.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_protocol::{MAX_POOLS, PoolName};

/// The conditions of pools that the agent has reported, by pool and word ([`Identity::word`]), as they are written in the
/// annotation [`reported_conditions`].
///
/// [`Identity::word`]: crate::volumes::Identity::word
/// [`reported_conditions`]: super::names::reported_conditions
pub type Reported = BTreeMap<String, BTreeSet<String>>;

/// The most that is read of it, in bytes: more than all kinds of conditions of all pools.
const LONGEST: usize = 64 << 10;

/// Returns what an annotation says. Whatever somebody else has written there is nothing that was reported.
pub fn reported(annotation: Option<&String>) -> Reported {
    let text = annotation.filter(|text| text.len() <= LONGEST);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Returns the pools that take no new volumes, as an annotation ([`cordoned_pools`]) says. What is no name of a pool is none.
///
/// [`cordoned_pools`]: super::names::cordoned_pools
pub fn cordoned(annotation: Option<&String>) -> BTreeSet<PoolName> {
    let text = annotation.filter(|text| text.len() <= LONGEST);
    text.iter().flat_map(|text| text.split(',')).filter_map(|name| name.trim().parse().ok()).take(MAX_POOLS).collect()
}

/// The annotation's text for these pools; `None` if there are none.
pub fn cordon(pools: &BTreeSet<PoolName>) -> Option<String> {
    let names: Vec<_> = pools.iter().map(PoolName::as_str).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// How often it is written. Kubelets write theirs every ten seconds.
pub const PERIOD: Duration = Duration::from_secs(60);

/// How long nobody should worry if it is not: three times missed.
pub const OVERDUE: Duration = Duration::from_secs(180);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_wrote_was_not_reported() {
        let long = format!("{{\"{}\": []}}", "x".repeat(LONGEST));
        for text in ["", "[]", "{\"fast\": 1}", long.as_str()] {
            assert_eq!(reported(Some(&text.to_owned())), Reported::default());
        }
        assert_eq!(reported(None), Reported::default());
    }

    #[test]
    fn pools_are_cordoned_by_their_names() {
        let pools = |text: &str| cordoned(Some(&text.to_owned()));
        let two: BTreeSet<PoolName> = ["default", "fast"].into_iter().map(|name| name.parse().unwrap()).collect();
        assert_eq!(pools("fast, default,,../x,Fast"), two);
        assert_eq!((pools(&cordon(&two).unwrap()), cordon(&BTreeSet::new())), (two, None));
        assert!(cordoned(None).is_empty() && pools("").is_empty() && pools(&"x,".repeat(LONGEST)).is_empty());
        let many = (0..100).map(|number| format!("p{number}")).collect::<Vec<_>>().join(",");
        assert_eq!(pools(&many).len(), MAX_POOLS);
    }
}
