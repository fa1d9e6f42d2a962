//! The order in which nodes bid for a claim. Each node works it out on its own, and all arrive at nearly the same
//! order.
//!
//! Every agent publishes its node's capacity for the scheduler, so every agent can see how many others there are and
//! how much room they have. A hash of claim and node, weighted by the room, ranks them (weighted rendezvous hashing): a
//! node with more room comes first more often, and different claims have different orders. A node that comes first does
//! not wait at all.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::bid_turn::Rank;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::capacity::csi_storage_capacity::{self, NodeCapacity};
use crate::kubernetes::context::Context;
use crate::kubernetes::heartbeat;
use crate::volumes::Capacity;

/// How long to trust what other nodes have published.
const BELIEVED: Duration = Duration::from_secs(60);
/// At least this long for each node: in a large cluster, lists are long, and many agents ask for them.
const BELIEVED_PER_NODE: Duration = Duration::from_secs(1);

/// What the nodes have published, class by class.
pub type Nodes = BTreeMap<String, Vec<NodeCapacity>>;

/// What is known about the other nodes.
#[derive(Default)]
pub struct BidOrder {
    known: Mutex<Option<Known>>,
}

/// What they have published, as it was when they were listed.
struct Known {
    until: Instant,
    nodes: Nodes,
}

impl BidOrder {
    /// Returns the rank of this node, which has `own` room, for a volume of `size` bytes of `class`, as far as is known. Only
    /// if nothing is known yet is anybody asked: if every node asked about each claim, it would cost as many lists as there
    /// are nodes.
    ///
    /// # Errors
    /// When the API server cannot say what the nodes have published.
    pub async fn rank(
        &self,
        context: &Context,
        claim: &str,
        class: &str,
        size: u64,
        own: Option<Capacity>,
    ) -> Result<Rank, Failure> {
        let mut known = self.known.lock().await;
        let nodes = match &mut *known {
            Some(known) => &known.nodes,
            unknown => &unknown.insert(list(context).await?).nodes,
        };
        let others = nodes.get(class).map(Vec::as_slice).unwrap_or_default();
        Ok(rank(claim, size, (context.agent.place.value(), own.map_or(0, |own| own.available)), others))
    }

    /// Asks anew if what is known is outdated, and returns whether it was. To be done by a node whose turn it is.
    ///
    /// # Errors
    /// When the API server cannot say what the nodes have published.
    pub async fn renew(&self, context: &Context) -> Result<bool, Failure> {
        let mut known = self.known.lock().await;
        let is_outdated = known.as_ref().is_none_or(|known| known.until <= Instant::now());
        if is_outdated {
            *known = Some(list(context).await?);
        }
        Ok(is_outdated)
    }
}

/// Lists what the nodes whose agents work have published.
async fn list(context: &Context) -> Result<Known, Failure> {
    let mut nodes = csi_storage_capacity::list_all(context).await?;
    let silent = match heartbeat::silent(context).await {
        // The rules of an earlier release do not grant it.
        Err(failure) if failure.is_forbidden() => HashSet::new(),
        silent => silent?,
    };
    nodes.values_mut().for_each(|nodes| nodes.retain(|node| !silent.contains(&node.node)));
    let longest = nodes.values().map(Vec::len).max().unwrap_or_default();
    let believed = BELIEVED.max(BELIEVED_PER_NODE * u32::try_from(longest).unwrap_or(u32::MAX));
    // With jitter, so that the agents do not all list at the same time again.
    Ok(Known { until: Instant::now() + believed + jitter(believed), nodes })
}

/// Returns the rank of `own` among `others`: a node, and its room.
fn rank(claim: &str, size: u64, own: (&str, u64), others: &[NodeCapacity]) -> Rank {
    let (node, room) = own;
    let mine = (turn(claim, node, room), node);
    let able = others.iter().filter(|other| other.node != node && other.largest_volume >= size);
    let (mut before, mut nodes) = (0, 1);
    for other in able {
        nodes += 1;
        if (turn(claim, &other.node, other.available), other.node.as_str()) < mine {
            before += 1;
        }
    }
    Rank { before, nodes }
}

/// Returns when it is a node's turn: the lowest number is first. Twice the room counts four times as much, so that
/// nodes become equally full rather than merely filling up at the same pace.
fn turn(claim: &str, node: &str, room: u64) -> f64 {
    let digest = Sha256::digest(format!("{claim}\n{node}"));
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let share = (number as f64 + 1.0) / (u64::MAX as f64 + 2.0);
    -share.ln() / (room.max(1) as f64).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(rooms: &[u64]) -> Vec<NodeCapacity> {
        let node = |(number, room): (usize, &u64)| NodeCapacity {
            node: format!("node-{number}"),
            available: *room,
            largest_volume: *room,
            is_obstructed: false,
        };
        rooms.iter().enumerate().map(node).collect()
    }

    /// For how many of a thousand claims each node comes first.
    fn firsts(rooms: &[u64], size: u64) -> Vec<usize> {
        let nodes = nodes(rooms);
        let is_first = |node: &NodeCapacity, claim: usize| {
            rank(&format!("claim-{claim}"), size, (&node.node, node.available), &nodes).before == 0
        };
        nodes.iter().map(|node| (0..1000).filter(|claim| is_first(node, *claim)).count()).collect()
    }

    #[test]
    fn all_nodes_agree_on_one_order() {
        let nodes = nodes(&[10, 20, 30, 40, 50]);
        for claim in 0..100 {
            let own = |node: &NodeCapacity| {
                let Rank { before, nodes } = rank(&claim.to_string(), 1, (&node.node, node.available), &nodes);
                assert_eq!(nodes, 5);
                before
            };
            let mut ranks: Vec<_> = nodes.iter().map(own).collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn the_emptier_are_first_more_often() {
        let firsts = firsts(&[100, 100, 200], 1);
        assert_eq!(firsts.iter().sum::<usize>(), 1000);
        assert!((120..=220).contains(&firsts[0]) && (120..=220).contains(&firsts[1]), "{firsts:?}");
        assert!((600..=740).contains(&firsts[2]), "{firsts:?}");
    }

    #[test]
    fn nobody_waits_for_a_node_without_room() {
        assert_eq!(firsts(&[10, 10, 10], 11), [1000, 1000, 1000]);
        let alone = Rank { before: 0, nodes: 1 };
        assert_eq!(rank("claim", 1, ("node-0", 5), &[]), alone);
        assert_eq!(rank("claim", 1, ("node-0", 0), &nodes(&[0])), alone, "its own object counts for nothing");
    }
}
