//! An agent's Lease, by which everybody can see whether it works.

use std::time::Duration;

/// How often it is written. Kubelets write theirs every ten seconds.
pub const PERIOD: Duration = Duration::from_secs(60);

/// How long nobody should worry if it is not: three times missed.
pub const OVERDUE: Duration = Duration::from_secs(180);
