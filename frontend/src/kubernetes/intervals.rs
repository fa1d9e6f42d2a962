//! What the agent does by the clock, and for how long it believes what it has seen.

use std::time::Duration;

/// How long each of these is. Random parts come on top, so that agents do not act all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// How often room is measured while nothing is known to have changed.
    pub capacity: Duration,
    /// How often all capacity objects are written whether or not they have changed here: another client may have changed
    /// them.
    pub capacity_written: Duration,
    /// How long the helper may be away, as it is while it is upgraded, before nothing is offered.
    pub helper_away: Duration,
    /// How long a size that proved impossible is not offered again.
    pub ruled_out: Duration,
    /// How often the API server is asked whether the node is still the same object. When a node is deleted and registered
    /// again, the capacity objects of the deleted one are deleted with it.
    pub node: Duration,
    /// How often the kubelet's record of drivers is looked at once it lists this one.
    pub registration: Duration,
    /// How often the agent's token is looked at: it may have been replaced.
    pub token: Duration,
    /// How often it is looked whether the admission policies that set labels are there.
    pub policies: Duration,
    /// How often objects without the policy's label are looked for. All objects of other drivers lack it too, and the more
    /// of them there are, the less often it is done.
    pub unlabelled: Duration,
    /// How old a claim that no node has taken is when its owner is told; how long no agent has taken one that begins as a
    /// copy when the first of them says so, and how long until the last one may.
    pub untaken: Duration,
    /// How often it is looked for claims that wait for a class of which no node can make volumes.
    pub unservable: Duration,
    /// How soon a claim that this node had no room for is looked at again.
    pub no_room: Duration,
    /// How soon to look again for a PersistentVolume that a claim or a snapshot names and that is not known yet.
    pub unknown_volume: Duration,
    /// How long a change of a volume that failed for good is left alone. Another size, or other attributes, are tried at once.
    pub failed_for_good: Duration,
    /// How soon the deletion of a volume that may be in an absent pool is tried again.
    pub absent_pool: Duration,
    /// How often volumes are compared with what the API server knows, to find those that nobody needs.
    pub orphans: Duration,
    /// How often the volumes are compared with what PersistentVolumes name.
    pub census: Duration,
    /// How soon that is done again after a failure, or once volumes are needed that cannot be seen: an object that was read
    /// before its controller settled it looks as if it needed its volume.
    pub census_again: Duration,
    /// How often it is looked whose the volumes are. It asks nobody.
    pub owners: Duration,
    /// How soon the note of an owner that could not be written is tried again.
    pub owner_again: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self::divided_by(1)
    }
}

impl Intervals {
    /// The usual ones, divided by this number.
    pub fn divided_by(number: u32) -> Self {
        let seconds = |seconds| Duration::from_secs(seconds) / number.max(1);
        Self {
            capacity: seconds(60),
            capacity_written: seconds(900),
            helper_away: seconds(60),
            ruled_out: seconds(60),
            node: seconds(360),
            registration: seconds(30),
            token: seconds(60),
            policies: seconds(300),
            unlabelled: seconds(1800),
            untaken: seconds(60),
            unservable: seconds(300),
            no_room: seconds(20),
            unknown_volume: seconds(20),
            failed_for_good: seconds(300),
            absent_pool: seconds(30),
            orphans: seconds(600),
            census: seconds(30),
            census_again: seconds(10),
            owners: seconds(5),
            owner_again: seconds(300),
        }
    }
}
