//! The host, asked live: what it shows as mounted, and whether the publish directories are still joined to it. What was
//! seen once is asked again when it matters.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{Error, PublishName, Separation, VolumeId};

use super::{Placer, failed, in_use, lock};
use crate::log::shown;
use crate::sys::Result as SysResult;
use crate::sys::loopdevice::MAJOR;
use crate::sys::mountinfo::{Mount, MountTable};

/// The host's mount table, and what the helper has in it.
#[derive(Debug)]
pub struct Host {
    nodes: String,
    ways: Vec<Way>,
    placer: Arc<Placer>,
    whole: Mutex<MountTable>,
    beginning: Mutex<MountTable>,
    questions: Mutex<Questions>,
    apart: Mutex<Option<Apart>>,
}

/// A publish directory in which mounts do not reach the host, and why.
pub type Apart = (PublishName, Separation);

/// How a publish directory is reached on the host.
#[derive(Clone, Debug)]
pub struct Way {
    /// The directory.
    pub name: PublishName,
    /// The peer group that joins the copy to the host's mount.
    pub peers: u32,
    /// The mounts on the way: the directory's own first, the root of the namespace last.
    pub steps: Vec<Step>,
}

/// A mount on a way.
#[derive(Clone, Debug)]
pub struct Step {
    /// The mount.
    pub mount: u64,
    /// What is reached on it: the directory, or the point of the mount before.
    pub leads_to: PathBuf,
}

/// What a volume looks like in the mount table.
#[derive(Clone, Debug)]
pub struct Question {
    /// The device of its pool's filesystem.
    pub device: (u32, u32),
    /// Its directory in that filesystem.
    pub directory: PathBuf,
    /// The number of its loop device.
    pub node: Option<u32>,
}

/// Questions that wait for a reading, and answers that wait for those who asked: where the volume is mounted, and what
/// is apart.
#[derive(Debug, Default)]
struct Questions {
    last: u64,
    asked: BTreeMap<u64, Question>,
    answered: BTreeMap<u64, SysResult<Answer>>,
}

/// Where the volume is mounted, and what is apart.
type Answer = (Option<PathBuf>, Option<Apart>);

impl Host {
    /// The host that the two tables list. `nodes` is what the tmpfs of device nodes was mounted from; nobody in a pod
    /// can choose that in these tables.
    pub fn new(nodes: String, ways: Vec<Way>, [whole, beginning]: [MountTable; 2], placer: Arc<Placer>) -> Self {
        let (whole, beginning) = (Mutex::new(whole), Mutex::new(beginning));
        Self { nodes, ways, placer, whole, beginning, questions: Mutex::default(), apart: Mutex::default() }
    }

    /// Checks that the host has nothing mounted that shows a volume, and would show it if it had.
    ///
    /// # Errors
    /// `InUse` when there is such a mount, or a publish directory is apart from the host.
    pub fn check_unmounted(&self, id: &VolumeId, question: Question) -> Result<(), Error> {
        let answer = self.ask(question).map_err(|error| failed("look at the host's mounts of volume", id, error))?;
        match answer {
            (Some(point), _) => Err(in_use(format!("volume {id} is mounted at {}; unmount it there", shown(&point)))),
            (None, Some(apart)) => Err(refusal(&apart)),
            (None, None) => Ok(()),
        }
    }

    /// Checks that what is mounted or unmounted in a publish directory is so on the host too. This reads the table as
    /// far as the directory's own mount, which is older than those of volumes; whether another mount hides it is known
    /// from the last whole reading. Whether it was moved, the placer finds out.
    ///
    /// # Errors
    /// `InUse` when it is apart from the host.
    pub fn check_joined(&self, name: &PublishName) -> Result<(), Error> {
        let Some(way) = self.ways.iter().find(|way| way.name == *name) else { return Ok(()) };
        let mut look = Look::new(way);
        let read = lock(&self.beginning).each(|mount| {
            look.see(mount);
            if look.sees_its_mount { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        read.map_err(|error| failed("look at the host's mount of publish directory", name, error))?;
        let known = || self.apart().filter(|(apart, _)| apart == name);
        look.own_mount().map(|cause| (name.clone(), cause)).or_else(known).map_or(Ok(()), |apart| Err(refusal(&apart)))
    }

    /// The publish directory that was apart from the host at the last whole reading, if one was.
    pub fn apart(&self) -> Option<Apart> {
        lock(&self.apart).clone()
    }

    /// The device of what is mounted at a path of the host, on top of all else there. This asks no filesystem anything.
    pub fn device_at(&self, point: &Path) -> SysResult<Option<(u32, u32)>> {
        let mut found = None;
        self.look(|mount| {
            if mount.point == point {
                found = Some(mount.device);
            }
        })?;
        Ok(found)
    }

    /// Reads the whole table. `visit` sees each mount.
    pub fn look(&self, visit: impl FnMut(&Mount)) -> SysResult<()> {
        self.read(&mut lock(&self.whole), visit).map(drop)
    }

    /// The number of the loop device whose node a mount shows, if a helper with this driver's name has made the node.
    pub fn node(&self, mount: &Mount) -> Option<u32> {
        let ours = mount.filesystem == "tmpfs" && mount.source.as_os_str() == self.nodes.as_str();
        let root = mount.root.to_str().filter(|_| ours)?;
        root.strip_suffix("//deleted").unwrap_or(root).strip_prefix("/loop")?.parse().ok()
    }

    /// Answers a question by a reading that begins after it was asked. One reading serves all that wait for it.
    fn ask(&self, question: Question) -> SysResult<Answer> {
        let ticket = lock(&self.questions).add(question);
        let mut table = lock(&self.whole);
        if let Some(answer) = lock(&self.questions).answered.remove(&ticket) {
            return answer;
        }
        let asked = std::mem::take(&mut lock(&self.questions).asked);
        let mut found = BTreeMap::new();
        let apart = self.read(&mut table, |mount| {
            let node = self.node(mount);
            let shown = |question: &Question| {
                let part = mount.device == question.device && mount.root.starts_with(&question.directory);
                // A filesystem on the device counts as well.
                let on = Some(mount.device) == question.node.map(|number| (MAJOR, number));
                part || on || node.is_some() && node == question.node
            };
            for (ticket, _) in asked.iter().filter(|(_, question)| shown(question)) {
                found.entry(*ticket).or_insert_with(|| mount.point.clone());
            }
        });
        let mut answer = |ticket| apart.clone().map(|apart| (found.remove(&ticket), apart));
        let own = answer(ticket);
        let others = asked.into_keys().filter(|other| *other != ticket).map(|other| (other, answer(other)));
        lock(&self.questions).answered.extend(others);
        own
    }

    fn read(&self, table: &mut MountTable, mut visit: impl FnMut(&Mount)) -> SysResult<Option<Apart>> {
        let mut looks: Vec<_> = self.ways.iter().map(Look::new).collect();
        table.each(|mount| {
            looks.iter_mut().for_each(|look| look.see(mount));
            visit(mount);
            ControlFlow::Continue(())
        })?;
        let mut apart = None;
        for look in looks {
            let is_moved = || Ok(self.placer.is_moved(&look.way.name)?.then_some(Separation::Moved));
            if let Some(separation) = look.whole_way().map_or_else(is_moved, |found| Ok(Some(found)))? {
                apart = Some((look.way.name.clone(), separation));
                break;
            }
        }
        lock(&self.apart).clone_from(&apart);
        Ok(apart)
    }
}

impl Questions {
    fn add(&mut self, question: Question) -> u64 {
        self.last = self.last.saturating_add(1);
        self.asked.insert(self.last, question);
        self.last
    }
}

/// What a reading has shown of a way so far.
struct Look<'a> {
    way: &'a Way,
    seen: usize,
    sees_its_mount: bool,
    is_shared: bool,
    is_covered: bool,
}

impl<'a> Look<'a> {
    fn new(way: &'a Way) -> Self {
        Self { way, seen: 0, sees_its_mount: false, is_shared: false, is_covered: false }
    }

    fn see(&mut self, mount: &Mount) {
        let mut before = None;
        for Step { mount: own, leads_to } in &self.way.steps {
            let is_on_the_way = leads_to.starts_with(&mount.point);
            if mount.id == *own {
                self.seen = self.seen.saturating_add(usize::from(is_on_the_way));
                if before.is_none() {
                    (self.sees_its_mount, self.is_shared) = (is_on_the_way, mount.peers == Some(self.way.peers));
                }
            } else if mount.parent == *own && before != Some(mount.id) {
                // At the very point of the mount before, it is beneath that one.
                self.is_covered |= is_on_the_way && (before.is_none() || mount.point != *leads_to);
            }
            before = Some(*own);
        }
    }

    /// Returns why mounts do not reach the host, judging by the directory's own mount.
    fn own_mount(&self) -> Option<Separation> {
        match (self.sees_its_mount, self.is_shared) {
            (false, _) => Some(Separation::Unmounted),
            (true, false) => Some(Separation::NotShared),
            (true, true) => None,
        }
    }

    /// Returns why mounts do not reach the host, once all mounts were seen.
    fn whole_way(&self) -> Option<Separation> {
        let gone = (self.seen < self.way.steps.len()).then_some(Separation::Unmounted);
        self.own_mount().or(gone).or(self.is_covered.then_some(Separation::Covered))
    }
}

/// The error for what the placer has not done in a publish directory, given what the host's table says of that: it knows
/// besides whether the directory was moved.
pub fn apart(joined: Result<(), Error>, name: &PublishName) -> Error {
    joined.err().unwrap_or_else(|| refusal(&(name.clone(), Separation::Moved)))
}

fn refusal((directory, cause): &Apart) -> Error {
    let (what, remedy) = match cause {
        Separation::Unmounted => ("the mount that it was on is gone", "mount it again, shared"),
        Separation::NotShared => ("its mount is not shared any more", "run mount --make-shared on its mount"),
        Separation::Covered => ("another mount hides it", "unmount that one, or make it shared"),
        Separation::Moved => ("it was renamed or replaced", "put it back, or restart bulkhead-privhelper"),
    };
    in_use(format!("publish directory {directory} is apart from the host's: {what}; {remedy}"))
}

#[cfg(test)]
mod tests;
