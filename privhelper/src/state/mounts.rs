//! Which mounts of the host show volumes, known without reading its whole mount table each time.
//!
//! The kernel tells the id of each mount that comes or goes (Linux 6.15). The table is in the order of these ids, which only
//! grow, so what has come is at its end: no more than that is read, and what has gone is forgotten by its id. All that the
//! kernel has told of must be found in the table, one line each; where that is not so, or it tells of anything else, the whole
//! table is read. So is it, always, by a kernel that tells nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bulkhead_protocol::VolumeId;

use super::layout::DATA;
use super::volumes::Volumes;
use super::ways::{Look, Way};
use crate::sys::Result as SysResult;
use crate::sys::loopdevice::MAJOR;
use crate::sys::mountinfo::changes::Change;
use crate::sys::mountinfo::{Mount, MountTable};

/// The mounts of the host that show something of volumes.
#[derive(Debug)]
pub struct Mounts {
    table: MountTable,
    /// The source of the tmpfs of device nodes; nobody in a pod can choose that in this table.
    nodes: String,
    volumes: Arc<Volumes>,
    /// How many readings of the whole table have begun.
    pub begun: Arc<AtomicU64>,
    /// Whether the last of them has come to its end.
    is_known: bool,
    /// Whether what was told and what was read fit since then.
    is_current: bool,
    /// Where the pools were then: what a mount shows is judged by that.
    pools: Vec<PoolAt>,
    /// The highest id that was told.
    newest: u64,
    shown: BTreeMap<Part, Vec<Seen>>,
    /// What is shown by those of which the ids are known.
    ids: BTreeMap<u64, Vec<Part>>,
    /// What all mounts have shown of the ways to the publish directories.
    pub looks: Vec<Look>,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Something of the volume's directory in its pool.
    Volume(VolumeId),
    /// The loop device with that number: its node, or a filesystem on it.
    Device(u32),
    /// What looks like the content of a directory volume, in none of the pools that are served.
    Elsewhere(VolumeId),
    /// Something of a pool's filesystem that is beside the volumes that were known when it was read. It may be moved to where
    /// one is, of which nothing is told.
    Beside,
}

/// A mount that shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    id: Option<u64>,
    point: Box<Path>,
    /// Whether it shows the content of a directory volume as it is published, neither more nor less.
    is_content: bool,
}

/// What one line says: the parts of volumes that it shows.
type Line = (Vec<Part>, Seen);

/// Where a pool is: the device of its filesystem, and its directory there under the names that lead to it now.
pub type PoolAt = ((u32, u32), PathBuf);

/// How often the end of the table is read until nothing more is told.
const MOST_ROUNDS: usize = 100;

impl Mounts {
    /// Nothing is known yet of the mounts in this table.
    pub fn new(table: MountTable, nodes: String, ways: &[Arc<Way>], volumes: Arc<Volumes>) -> Self {
        Self {
            table,
            nodes,
            volumes,
            begun: Arc::default(),
            is_known: false,
            is_current: false,
            pools: Vec::new(),
            newest: 0,
            shown: BTreeMap::new(),
            ids: BTreeMap::new(),
            looks: ways.iter().map(Look::new).collect(),
        }
    }

    /// Whether the kernel tells of changes.
    pub fn are_told(&self) -> bool {
        self.table.has_changes()
    }

    /// Returns whether the whole table was read to its end, with the pools in these places, once this many readings had begun.
    pub fn was_read_since(&self, begun: u64, pools: &[PoolAt]) -> bool {
        self.is_known && self.pools == pools && self.begun.load(SeqCst) != begun
    }

    /// Returns whether there is a mount that may show a volume by now, though it did not when it was read.
    pub fn may_have_moved(&self) -> bool {
        self.shown.contains_key(&Part::Beside)
    }

    /// Where something of a volume, or its device, is mounted.
    pub fn showing(&self, id: &VolumeId, device: Option<u32>) -> Option<&Path> {
        let parts = [Some(Part::Volume(id.clone())), device.map(Part::Device)];
        parts.iter().flatten().find_map(|part| Some(&*self.shown.get(part)?.first()?.point))
    }

    /// Where the content of a directory volume with this id is mounted, whatever pool it is in.
    pub fn contents(&self, id: &VolumeId) -> impl Iterator<Item = &Path> {
        let parts = [Part::Volume(id.clone()), Part::Elsewhere(id.clone())];
        let seen = parts.into_iter().filter_map(|part| self.shown.get(&part)).flatten();
        seen.filter(|seen| seen.is_content).map(|seen| &*seen.point)
    }

    /// Comes to know what has changed before this was called.
    ///
    /// # Errors
    /// When the table cannot be read. What was known before is then not believed any more.
    pub fn follow(&mut self, pools: &[PoolAt]) -> SysResult<()> {
        if !std::mem::take(&mut self.is_current) || self.pools != pools || !self.fits(pools)? {
            return self.read_whole(pools, |_| {});
        }
        self.is_current = true;
        Ok(())
    }

    /// Reads what is new, and returns whether it is what was told.
    fn fits(&mut self, pools: &[PoolAt]) -> SysResult<bool> {
        let (mut told, mut lines, mut floor) = (BTreeSet::new(), Vec::new(), self.newest);
        for round in 0..MOST_ROUNDS {
            let Some(changes) = self.told()? else { return Ok(false) };
            if changes.is_empty() {
                // One system call at a time changes mounts, and the next begins when all is told of it. So nothing that is
                // missing on one side stands for what is missing on the other, if all that came before has been read.
                let fits = told.len() == lines.len();
                told.into_iter().zip(lines).for_each(|(id, line)| self.add(Some(id), line));
                return Ok(fits);
            }
            for change in changes {
                match change {
                    Change::Attached(id) if id > floor => {
                        told.insert(id);
                        // Its line may have been read already, and with it the place where an older one would be.
                        floor = if round > 0 { id } else { floor };
                    }
                    // Whether its line was read, nobody knows.
                    Change::Detached(id) if told.contains(&id) && !lines.is_empty() => return Ok(false),
                    Change::Detached(id) if told.remove(&id) => {}
                    Change::Detached(id) => self.forget(id),
                    Change::Attached(_) | Change::Other => return Ok(false),
                }
            }
            let Some(new) = self.read_rest(pools)? else { return Ok(false) };
            lines.extend(new);
            floor = self.newest;
        }
        Ok(false)
    }

    /// What the kernel tells since the last time, whatever becomes of it; `None` if it tells nothing at all.
    fn told(&mut self) -> SysResult<Option<Vec<Change>>> {
        let changes = self.table.changes().transpose()?;
        for change in changes.iter().flatten() {
            if let Change::Attached(id) = change {
                self.newest = self.newest.max(*id);
            }
        }
        Ok(changes)
    }

    /// Reads the whole table. `visit` sees each mount.
    ///
    /// # Errors
    /// When it cannot be read. Nothing is known then.
    pub fn read_whole(&mut self, pools: &[PoolAt], mut visit: impl FnMut(&Mount)) -> SysResult<()> {
        (self.is_known, self.is_current, self.pools) = (false, false, pools.to_vec());
        self.begun.fetch_add(1, SeqCst);
        (self.shown, self.ids) = (BTreeMap::new(), BTreeMap::new());
        self.looks.iter_mut().for_each(|look| *look = Look::new(&look.way));
        // What was told before it begins is in it.
        self.told()?;
        // One that comes meanwhile may be there twice: see `read_rest`.
        let (mut lines, looks, shown) = (BTreeSet::new(), &mut self.looks, (&*self.nodes, &*self.volumes));
        self.table.each(|mount| {
            looks.iter_mut().for_each(|look| look.see(mount));
            visit(mount);
            lines.insert(line(shown, pools, mount));
            ControlFlow::Continue(())
        })?;
        lines.into_iter().for_each(|line| self.add(None, line));
        self.is_known = true;
        // What has come meanwhile may be missing here. Who has asked before this began need not know it; who asks next has the
        // whole table read again.
        let has_gone = |change: &Change| matches!(change, Change::Detached(_));
        self.is_current = self.told()?.is_some_and(|changes| changes.iter().all(has_gone));
        Ok(())
    }

    /// Reads what is behind the last line that was read; `None` if a mount is there twice. A kernel without "namespace: fix
    /// proc mount iteration" (2026) shows one that comes after the end was read as often as ids were given out in between.
    fn read_rest(&mut self, pools: &[PoolAt]) -> SysResult<Option<Vec<Line>>> {
        let (mut lines, mut mounts, mut is_twice) = (Vec::new(), BTreeSet::new(), false);
        let (looks, shown) = (&mut self.looks, (&*self.nodes, &*self.volumes));
        self.table.rest(|mount| {
            is_twice = !mounts.insert(mount.id);
            if is_twice {
                return ControlFlow::Break(());
            }
            looks.iter_mut().for_each(|look| look.see(mount));
            lines.push(line(shown, pools, mount));
            ControlFlow::Continue(())
        })?;
        Ok((!is_twice).then_some(lines))
    }

    fn add(&mut self, id: Option<u64>, (parts, seen): Line) {
        for part in &parts {
            let others = self.shown.entry(part.clone()).or_insert_with(|| Vec::with_capacity(1));
            others.push(Seen { id, ..seen.clone() });
        }
        if let Some(id) = id.filter(|_| !parts.is_empty()) {
            self.ids.insert(id, parts);
        }
    }

    fn forget(&mut self, id: u64) {
        for part in self.ids.remove(&id).unwrap_or_default() {
            if let Some(seen) = self.shown.get_mut(&part) {
                seen.retain(|seen| seen.id != Some(id));
                if seen.is_empty() {
                    self.shown.remove(&part);
                }
            }
        }
    }
}

/// What a mount shows of volumes, of which these are known. `nodes` is the source of the tmpfs of device nodes.
fn line((nodes, volumes): (&str, &Volumes), pools: &[PoolAt], mount: &Mount) -> Line {
    let content = mount.root.parent().filter(|_| mount.root.file_name() == Some(DATA.as_ref()));
    let seen = Seen { id: None, point: mount.point.as_path().into(), is_content: content.is_some() };
    let in_pool = pools.iter().find_map(|(device, directory)| volume_in(*device, directory, mount));
    if let Some(id) = in_pool {
        let beside = volumes.get(&id).is_none().then_some(Part::Beside);
        return ([Part::Volume(id)].into_iter().chain(beside).collect(), seen);
    }
    let is_beside = |(device, directory): &PoolAt| *device == mount.device && !directory.starts_with(&mount.root);
    let beside = pools.iter().any(is_beside).then_some(Part::Beside);
    let on_device = (mount.device.0 == MAJOR).then_some(mount.device.1);
    let device = on_device.or_else(|| node(nodes, mount)).map(Part::Device);
    let elsewhere = content.and_then(|outer| outer.file_name()?.to_str()?.parse().ok()).map(Part::Elsewhere);
    (device.into_iter().chain(elsewhere).chain(beside).collect(), seen)
}

/// The volume of which a mount shows something, if it is in the pool in this directory of the filesystem on this device.
pub fn volume_in(device: (u32, u32), directory: &Path, mount: &Mount) -> Option<VolumeId> {
    let below = mount.root.strip_prefix(directory).ok().filter(|_| mount.device == device)?;
    below.components().next()?.as_os_str().to_str()?.parse().ok()
}

/// The number of the loop device whose node a mount shows, if it is from the tmpfs with this source.
pub fn node(nodes: &str, mount: &Mount) -> Option<u32> {
    let ours = mount.filesystem == "tmpfs" && mount.source.as_os_str() == nodes;
    let root = mount.root.to_str().filter(|_| ours)?;
    root.strip_suffix("//deleted").unwrap_or(root).strip_prefix("/loop")?.parse().ok()
}

#[cfg(test)]
mod tests;
