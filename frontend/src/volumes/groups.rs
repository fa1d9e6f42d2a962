//! Snapshots of several volumes at one moment, as a group.

use std::collections::BTreeSet;

use bulkhead_model::volumes::{Fault, before_those_of, group_of, identify_group, snapshot_in};
use bulkhead_protocol::{ErrorKind, MAX_MEMBERS, MAX_SNAPSHOTS, Member, Request, Snapshot, UpTo, VolumeId};

use super::{Guard, Volumes};

/// Snapshots that were taken at one moment; there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's id.
    pub id: VolumeId,
    /// Its snapshots.
    pub snapshots: Vec<Snapshot>,
}

impl Group {
    /// When they were taken, in nanoseconds since 1970.
    pub fn taken(&self) -> u64 {
        self.snapshots.first().map(|first| first.origin.copied).unwrap_or_default()
    }
}

impl Volumes {
    /// Takes a snapshot of each of `sources`, all at one moment, or finds those that were taken before under the same name.
    ///
    /// # Errors
    /// `Unsupported` when they cannot be copied together, `AlreadyExists` when the group is one of others, `Busy` when one
    /// of them cannot be frozen.
    pub async fn create_group(&self, sources: &[VolumeId], name: &str) -> Result<Group, Fault> {
        let (group, name_hash) = identify_group(name)?;
        let sources: BTreeSet<&VolumeId> = sources.iter().collect();
        let member = |volume: &&VolumeId| -> Result<Member, Fault> {
            Ok(Member { volume: (*volume).clone(), snapshot: snapshot_in(&group, volume)? })
        };
        let members: Vec<Member> = sources.iter().map(member).collect::<Result<_, _>>()?;
        let _guards = self.enter_all(members.iter().flat_map(|member| [&member.volume, &member.snapshot])).await?;
        // What a crash has left of it is of no others.
        let others = |found: &&Snapshot| !sources.contains(&found.origin.source);
        let found = self.snapshots_in(&group).await?;
        if let Some(other) = found.iter().find(others) {
            let volume = &other.origin.source;
            return Err(Fault::already_exists(format!("group {group} exists, and has a snapshot of {volume} as well")));
        }
        if self.health().borrow().is_any_unmounted() {
            for Member { volume, snapshot } in &members {
                let pool = self.helper.usage(volume, None).await?.pool;
                self.check_mounted(snapshot, &pool).await?;
            }
        }
        let members = UpTo::try_from(members)
            .map_err(|_| Fault::unsupported(format!("at most {MAX_MEMBERS} volumes are copied at one moment")))?;
        match self.helper.done(Request::CreateGroup { members, name_hash }).await.map_err(Fault::from) {
            Ok(()) => self.group(&group).await,
            Err(fault) if fault.is(ErrorKind::NotFound) => Err(self.scattered(&sources, fault).await),
            Err(fault) => Err(fault),
        }
    }

    /// The group with this id.
    ///
    /// # Errors
    /// `NotFound` when nothing is left of it.
    pub async fn group(&self, id: &VolumeId) -> Result<Group, Fault> {
        let snapshots = self.snapshots_in(id).await?;
        if snapshots.is_empty() {
            return Err(Fault::not_found(format!("no such group of snapshots: {id}")));
        }
        Ok(Group { id: id.clone(), snapshots })
    }

    /// Deletes the snapshots of a group. One of which nothing is left counts as deleted.
    ///
    /// # Errors
    /// When one of them cannot be deleted.
    pub async fn delete_group(&self, id: &VolumeId) -> Result<(), Fault> {
        for found in self.snapshots_in(id).await? {
            self.delete_snapshot(found.snapshot).await?;
        }
        Ok(())
    }

    /// What there is of a group: its ids follow one another in the list of all.
    ///
    /// # Errors
    /// When the helper does not say.
    pub async fn snapshots_in(&self, group: &VolumeId) -> Result<Vec<Snapshot>, Fault> {
        // No group has an id that is too long for this.
        let Ok(mut after) = before_those_of(group) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        loop {
            let limit = u16::try_from(MAX_SNAPSHOTS).unwrap_or(u16::MAX);
            let page = self.helper.list_snapshots(Some(after.clone()), None, limit).await?;
            let Some(last) = page.last() else { return Ok(all) };
            after = last.snapshot.clone();
            let (own, others): (Vec<_>, Vec<_>) =
                page.into_iter().partition(|found| group_of(&found.snapshot).as_ref() == Some(group));
            all.extend(own);
            if !others.is_empty() {
                return Ok(all);
            }
        }
    }

    /// Says so if only some of the volumes are on this node.
    async fn scattered(&self, sources: &BTreeSet<&VolumeId>, missing: Fault) -> Fault {
        for source in sources {
            if self.helper.usage(source, None).await.is_ok() {
                return Fault::unsupported(format!(
                    "{missing}; {source} is on this node: volumes on several nodes have no moment in common"
                ));
            }
        }
        missing
    }

    /// The right to change all of these, in the order in which everybody takes it.
    async fn enter_all(&self, ids: impl Iterator<Item = &VolumeId>) -> Result<Vec<Guard>, Fault> {
        let mut guards = Vec::new();
        for id in ids.collect::<BTreeSet<_>>() {
            guards.push(self.in_flight.enter(id).await?);
        }
        Ok(guards)
    }
}
