//! What the agent does by the clock, and for how long it believes what it has seen.

use std::time::Duration;

/// How long each of these is. Random parts come on top, so that agents do not act all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// How often room is measured while nothing is known to have changed.
    pub capacity: Duration,
    /// How long the helper may be away, as it is while it is upgraded, before nothing is offered.
    pub helper_away: Duration,
    /// How long a size that proved impossible is not offered again.
    pub ruled_out: Duration,
    /// How often the volumes are compared with what PersistentVolumes name.
    pub census: Duration,
    /// How soon that is done again after a failure, or once volumes are needed that cannot be seen: an object that was read
    /// before its controller settled it looks as if it needed its volume.
    pub census_again: Duration,
    /// How often the agent's token is looked at: it may have been replaced.
    pub token: Duration,
    /// How old a claim that no node has taken is when its owner is told; how long no agent has taken one that begins as a
    /// copy when the first of them says so, and how long until the last one may.
    pub untaken: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self {
            capacity: minute,
            helper_away: minute,
            ruled_out: minute,
            census: minute / 2,
            census_again: Duration::from_secs(10),
            token: minute,
            untaken: minute,
        }
    }
}

impl Intervals {
    /// The usual ones, divided by this number.
    pub fn divided_by(number: u32) -> Self {
        let Self { capacity, helper_away, ruled_out, census, census_again, token, untaken } = Self::default();
        let divided = |interval: Duration| interval / number.max(1);
        Self {
            capacity: divided(capacity),
            helper_away: divided(helper_away),
            ruled_out: divided(ruled_out),
            census: divided(census),
            census_again: divided(census_again),
            token: divided(token),
            untaken: divided(untaken),
        }
    }
}
