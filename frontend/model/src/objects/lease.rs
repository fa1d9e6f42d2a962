//! An agent's Lease, by which everybody can see whether it works.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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
}
