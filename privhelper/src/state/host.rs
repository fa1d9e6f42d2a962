//! The host, asked live: what it shows as mounted, and whether the publish directories are still joined to it. What was
//! seen once is asked again when it matters.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use bulkhead_protocol::{Error, PublishName, Separation, VolumeId};

use super::mounts::{Mounts, PoolAt};
use super::ways::{Apart, Look, Way, refusal};
use super::{Placer, Volumes, failed, in_use, lock};
use crate::log::{self, shown};
use crate::sys::Result as SysResult;
use crate::sys::mountinfo::{Mount, MountTable};

/// The host's mount table, and what the helper has in it.
#[derive(Debug)]
pub struct Host {
    ways: Vec<Arc<Way>>,
    placer: Arc<Placer>,
    mounts: Mutex<Mounts>,
    /// How many readings of the whole table have begun.
    begun: Arc<AtomicU64>,
    beginning: Mutex<MountTable>,
    apart: Mutex<Option<Apart>>,
}

/// What speaks against taking a volume for unmounted.
enum Objection {
    Mounted(PathBuf),
    Apart(Apart),
}

impl Host {
    /// The host that the two tables list. `nodes` is what the tmpfs of device nodes was mounted from; these volumes are known.
    pub fn new(
        nodes: String,
        ways: Vec<Way>,
        [whole, beginning]: [MountTable; 2],
        placer: Arc<Placer>,
        volumes: Arc<Volumes>,
    ) -> Self {
        let ways: Vec<_> = ways.into_iter().map(Arc::new).collect();
        let mounts = Mounts::new(whole, nodes, &ways, volumes);
        if !mounts.are_told() {
            // KERNEL(6.15): before, it never does.
            log::info!("the kernel does not tell of mounts: all are read for each exclusive publish and each deletion");
        }
        let begun = Arc::clone(&mounts.begun);
        let (mounts, beginning) = (Mutex::new(mounts), Mutex::new(beginning));
        Self { ways, placer, mounts, begun, beginning, apart: Mutex::default() }
    }

    /// Checks that the host has nothing mounted that shows a volume or its loop device, and would show it if it had.
    ///
    /// # Errors
    /// `InUse` when there is such a mount, or a publish directory is apart from the host.
    pub fn check_unmounted(&self, pools: &[PoolAt], id: &VolumeId, device: Option<u32>) -> Result<(), Error> {
        let objection = self.ask(pools, |mounts| match mounts.showing(id, device) {
            Some(point) => Ok(Some(Objection::Mounted(point.to_owned()))),
            None => Ok(self.apart_now(mounts)?.map(Objection::Apart)),
        });
        match objection.map_err(|error| failed("look at the host's mounts of volume", id, error))? {
            Some(Objection::Mounted(point)) => {
                Err(in_use(format!("volume {id} is mounted at {}; unmount it there", shown(&point))))
            }
            Some(Objection::Apart((directory, cause))) => Err(refusal(directory, cause)),
            None => Ok(()),
        }
    }

    /// Returns where the content of a directory volume with this id is mounted, of those places that are `wanted`.
    pub fn content_at(
        &self,
        pools: &[PoolAt],
        id: &VolumeId,
        wanted: impl Fn(&Path) -> bool,
    ) -> SysResult<Option<PathBuf>> {
        self.ask(pools, |mounts| Ok(mounts.contents(id).find(|point| wanted(point)).map(Path::to_owned)))
    }

    /// Checks that what is mounted or unmounted in a publish directory is so on the host too. This reads the table as
    /// far as the directory's own mount, which is older than those of volumes; whether another mount hides it is known
    /// from the last time that all mounts were asked for. Whether it was moved, the placer finds out.
    ///
    /// # Errors
    /// `InUse` when it is apart from the host.
    pub(super) fn check_joined(&self, name: &PublishName) -> Result<(), Error> {
        let Some(way) = self.ways.iter().find(|way| way.name == *name) else { return Ok(()) };
        let looks = self.look_at_beginning(std::slice::from_ref(way), Look::sees_its_mount);
        let looks = looks.map_err(|error| failed("look at the host's mount of publish directory", name, error))?;
        let known = || self.apart().filter(|(apart, _)| apart == name);
        let own = looks.iter().find_map(Look::own_mount).map(|cause| (name.clone(), cause));
        own.or_else(known).map_or(Ok(()), |(directory, cause)| Err(refusal(directory, cause)))
    }

    /// The publish directory that was apart from the host when all mounts were last asked for, if one was.
    pub fn apart(&self) -> Option<Apart> {
        lock(&self.apart).clone()
    }

    /// The device of what is mounted at a path of the host, on top of all else there. This asks no filesystem anything.
    pub fn device_at(&self, pools: &[PoolAt], point: &Path) -> SysResult<Option<(u32, u32)>> {
        let mut found = None;
        lock(&self.mounts).read_whole(pools, |mount| {
            if mount.point == point {
                found = Some(mount.device);
            }
        })?;
        Ok(found)
    }

    /// Reads a whole table of the host's mounts, which nobody else reads. `visit` sees each mount.
    pub fn look(&self, table: &mut MountTable, mut visit: impl FnMut(&Mount)) -> SysResult<()> {
        let mut looks: Vec<_> = self.ways.iter().map(Look::new).collect();
        table.each(|mount| {
            looks.iter_mut().for_each(|look| look.see(mount));
            visit(mount);
            ControlFlow::Continue(())
        })?;
        self.judge(&looks).map(drop)
    }

    /// Comes to know what has changed, so that there is little to read when it matters.
    pub fn keep_up(&self, pools: &[PoolAt]) -> SysResult<()> {
        let mut mounts = lock(&self.mounts);
        if mounts.are_told() { mounts.follow(pools) } else { Ok(()) }
    }

    /// Returns what speaks against something, if anything does. Nothing is refused by what is only remembered, and nothing is
    /// allowed by it while a mount may have moved: the whole table is asked first, by a reading that begins after this was
    /// called. One reading serves all that wait for it, if it has come to its end.
    fn ask<T>(&self, pools: &[PoolAt], objection: impl Fn(&Mounts) -> SysResult<Option<T>>) -> SysResult<Option<T>> {
        let begun = self.begun.load(SeqCst);
        let mut mounts = lock(&self.mounts);
        let was_read = |mounts: &Mounts| mounts.was_read_since(begun, pools);
        if !was_read(&mounts) {
            mounts.follow(pools)?;
        }
        let found = objection(&mounts)?;
        if was_read(&mounts) || found.is_none() && !mounts.may_have_moved() {
            return Ok(found);
        }
        mounts.read_whole(pools, |_| {})?;
        objection(&mounts)
    }

    /// Returns what is apart from the host now.
    fn apart_now(&self, mounts: &Mounts) -> SysResult<Option<Apart>> {
        let mut looks = self.look_at_beginning(&self.ways, Look::sees_all_steps)?;
        looks.iter_mut().zip(&mounts.looks).for_each(|(look, all)| look.learn(all));
        self.judge(&looks)
    }

    /// Reads the table until enough is seen of these ways. Their mounts are older than those of volumes.
    fn look_at_beginning(&self, ways: &[Arc<Way>], is_enough: fn(&Look) -> bool) -> SysResult<Vec<Look>> {
        let mut looks: Vec<_> = ways.iter().map(Look::new).collect();
        lock(&self.beginning).each(|mount| {
            looks.iter_mut().for_each(|look| look.see(mount));
            if looks.iter().all(is_enough) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(looks)
    }

    fn judge(&self, looks: &[Look]) -> SysResult<Option<Apart>> {
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

#[cfg(test)]
mod tests;
