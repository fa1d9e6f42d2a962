//! The volumes in the pools, and what a crash may have left unfinished there.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_protocol::{Bytes, CallId, VolumeId, VolumeKind};
use rustix::fs::{Mode, OFlags};

use super::Recovery;
use crate::bookkeeping::{Progress, Share, limits};
use crate::log;
use crate::start::refusal::{Refusal, Why};
use crate::state::layout::{self, DATA, Entry};
use crate::state::{Deleted, Kind, Pool, Record, Served, Volume};
use crate::sys::file::{self, FileId};
use crate::sys::quota::ProjectId;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, walk};

/// What the kernel says of a project where no quotas are counted.
const NO_QUOTAS: [Errno; 4] = [Errno::NOSYS, Errno::SRCH, Errno::OPNOTSUPP, Errno::INVAL];

/// What an entry of a pool with a volume's name turns out to be.
enum Found {
    Live,
    Unfinished(Box<Volume>),
    Deleted,
    Foreign,
}

impl Recovery {
    /// Goes through the pools. One that is there but cannot be listed does not make the start fail: what is published
    /// from it can still be unpublished.
    pub(super) fn find_volumes(&mut self) {
        let pools = self.pools.clone();
        for (pool, served) in pools.iter().filter_map(|pool| Some((pool, pool.state.as_ref().ok()?))) {
            if let Err(error) = self.scan(pool, served) {
                let why = format!("it cannot be listed: {error}");
                log::error!("a pool is not served pool={} condition={why:?}", pool.config.name);
                let _ = pool.trouble.set(why);
            }
        }
    }

    /// Goes through a pool's entries, once.
    fn scan(&mut self, pool: &Arc<Pool>, served: &Served) -> SysResult<()> {
        let (mut names, mut unfinished) = (Vec::new(), Vec::new());
        walk::each_entry(&served.directory, |name| {
            names.push(name.to_string_lossy().into_owned());
            Ok(())
        })?;
        // A name given below must not be one that already exists.
        for name in &names {
            if let Entry::Deleted(number) = Entry::of(name) {
                served.deleted_numbers.found(number);
            }
        }
        for name in names {
            let found = match Entry::of(&name) {
                Entry::OfPool => continue,
                Entry::Foreign => Found::Foreign,
                Entry::Unfinished | Entry::Deleted(_) => Found::Deleted,
                Entry::Volume(id) => match self.adopt(pool, served, &id) {
                    Ok(Found::Unfinished(volume)) => {
                        unfinished.push((id, *volume));
                        continue;
                    }
                    found => found.unwrap_or_else(|why| {
                        self.set_aside(pool, served, &id, &why);
                        Found::Live
                    }),
                },
            };
            match found {
                Found::Live | Found::Unfinished(_) => {}
                Found::Deleted => self.adopt_deleted(pool, served, name)?,
                Found::Foreign => {
                    log::warning!("an entry of the pool is not a volume pool={} name={name:?}", pool.config.name);
                }
            }
        }
        self.end_groups(pool, served, unfinished)
    }

    /// Does not serve a volume that has not been added. What it was promised is promised to nobody else.
    fn set_aside(&mut self, pool: &Pool, served: &Served, id: &VolumeId, refusal: &Refusal) {
        self.refuse(pool, id, refusal);
        self.volumes.set_aside(pool, share_of(pool, served, id.as_str()).unwrap_or_default());
    }

    /// Does not serve a volume. What it was promised is promised to nobody else.
    fn refuse(&mut self, pool: &Pool, id: &VolumeId, refusal: &Refusal) {
        let why = refusal.to_string();
        let kind = refusal.why;
        log::error!("a volume is not served pool={} volume={id} kind={kind:?} why={why:?}", pool.config.name);
        self.volumes.refuse(id);
        self.unserved.insert(id.clone(), (pool.config.name.clone(), why));
    }

    /// Takes note of a volume that is unfinished or deleted.
    fn adopt_deleted(&mut self, pool: &Arc<Pool>, served: &Served, mut name: String) -> SysResult<()> {
        let share = share_of(pool, served, &name)?;
        if !matches!(Entry::of(&name), Entry::Deleted(_)) {
            // It should not keep its name: the next attempt to create the volume needs it, and the emptier finds it by
            // the name that it gets.
            name = served.put_aside(&name).map_or(name, |aside| aside.name().to_owned());
        }
        let (pool, progress, call) = (Arc::clone(pool), Progress::default(), CallId::default());
        self.volumes.add_deleted(&name, Deleted { pool, share, progress, call });
        Ok(())
    }

    /// Takes note of a volume, and repairs what a crash may have left unfinished.
    fn adopt(&mut self, pool: &Arc<Pool>, served: &Served, id: &VolumeId) -> Result<Found, Refusal> {
        let say = |error: SysError| error.to_string();
        let directory = match layout::open_volume(&served.directory, id.as_str()) {
            Err(SysError { errno: Errno::NOTDIR | Errno::LOOP, .. }) => return Ok(Found::Foreign),
            directory => directory.map_err(say)?,
        };
        if layout::is_deleted_in_place(&file::status(&directory).map_err(say)?) {
            return Ok(Found::Deleted);
        }
        let mut record = Record::read(&served.attributes, id.as_str()).map_err(why_no_record)?;
        let project = self.own_project(pool, served, id, &directory)?;
        let origin = layout::read_origin(&served.attributes, id.as_str())
            .map_err(|error| format!("what it is a copy of: {error}"))?;
        let mut allocated = 0;
        let content = match record.spec.kind {
            VolumeKind::Directory { inodes, mode } => {
                let open = || layout::open_content(&served.directory, id, Kind::Directory, OFlags::PATH);
                let data = match open() {
                    // A deletion of an unused volume was interrupted, or has failed: nobody was told that it is gone.
                    Err(SysError { errno: Errno::NOENT, .. })
                        if record.unused && walk::is_empty(&directory, c"").map_err(say)? =>
                    {
                        let mode = Mode::from_raw_mode(mode.get().into());
                        match file::make_directory(&directory, DATA, mode) {
                            // Without room for it, there is none for the volume either, which held nothing.
                            Err(SysError { errno: Errno::NOSPC | Errno::DQUOT, .. }) => return Ok(Found::Deleted),
                            made => made.and_then(|()| open()).map_err(say)?,
                        }
                    }
                    data => data.map_err(say)?,
                };
                restore_quota(pool, served, id, project, limits(record.spec.size, inodes)).map_err(say)?;
                file::status(&data).map_err(say)?.id
            }
            VolumeKind::Image { .. } | VolumeKind::Filesystem { .. } => {
                restore_quota(pool, served, id, project, (0, 0)).map_err(say)?;
                let image = layout::open_content(&served.directory, id, Kind::Block, OFlags::RDWR).map_err(say)?;
                check_kind(served, id, record.spec.kind)?;
                finish_growth(served, id, &image, &mut record).map_err(say)?
            }
            VolumeKind::Snapshot { .. } => {
                restore_quota(pool, served, id, project, (0, 0)).map_err(say)?;
                let image = layout::open_content(&served.directory, id, Kind::Snapshot, OFlags::RDONLY).map_err(say)?;
                check_kind(served, id, record.spec.kind)?;
                let status = file::status(&image).map_err(say)?;
                origin.as_ref().ok_or_else(|| Why::Damaged.because("it does not say what it is a copy of"))?;
                allocated = status.allocated;
                status.id
            }
        };
        let project = project.filter(|_| pool.has_quotas());
        let origin = origin.map(Arc::new);
        let volume = Volume { origin, allocated, ..Volume::new(Arc::clone(pool), project, record, content) };
        if volume.is_unfinished() {
            return Ok(Found::Unfinished(Box::new(volume)));
        }
        self.add(id, volume).map(|()| Found::Live)
    }

    /// Adds a volume, unless there is another with its content or its id.
    fn add(&mut self, id: &VolumeId, volume: Volume) -> Result<(), Refusal> {
        let (pool, content) = (Arc::clone(&volume.pool), volume.content);
        if let Some(other) = self.owners.get(&content).cloned() {
            let shared_with = |id: &VolumeId| {
                Why::Ambiguous.because(format!("its image is also that of volume {id}: remove one of its two names"))
            };
            self.refuse(&pool, &other, &shared_with(id));
            return Err(shared_with(&other));
        }
        // The other one may not be served either, or have been refused already.
        if self.unserved.contains_key(id) || !self.volumes.add(id.clone(), volume) {
            return Err(Why::Ambiguous.because("another pool has a volume with the same id"));
        }
        self.owners.insert(content, id.clone());
        Ok(())
    }

    /// Decides about the snapshots of a pool that do not say that all that were to be taken along with them are there. Where one
    /// of these says so, all are. Otherwise nobody was told, and they are deleted, unless that one may be among what is not served.
    fn end_groups(&mut self, pool: &Arc<Pool>, served: &Served, unfinished: Vec<(VolumeId, Volume)>) -> SysResult<()> {
        let mut completed = false;
        for (id, mut volume) in unfinished {
            let mut written = Ok(());
            if self.volumes.any(|other| !other.is_unfinished() && other.is_along_with(&volume)) {
                completed = true;
                volume.record.unused = false;
                written = volume.record.write(&served.attributes, id.as_str());
            } else if self.unserved.values().all(|(name, _)| *name != pool.config.name) {
                log::warning!(
                    "a snapshot is deleted: others that were to be taken along with it are missing volume={id}"
                );
                self.adopt_deleted(pool, served, id.as_str().to_owned())?;
                continue;
            }
            let written = written.map_err(|error| Refusal::from(format!("its record cannot be written: {error}")));
            if let Err(why) = written.and_then(|()| self.add(&id, volume)) {
                self.set_aside(pool, served, &id, &why);
            }
        }
        if completed {
            // If this fails, it is synced before anything is said of them.
            let _ = served.noting_failure(served.sync_all());
        }
        Ok(())
    }

    /// The project of a volume's directory, which in a pool with quotas must be its own.
    fn own_project(
        &mut self,
        pool: &Pool,
        served: &Served,
        id: &VolumeId,
        directory: &OwnedFd,
    ) -> Result<Option<ProjectId>, Refusal> {
        let project = layout::project_of(directory).map_err(|error| error.to_string())?;
        let remedy = "it was copied, or made with quota=none; stop the helper, then run bulkhead-setup requota";
        if !pool.has_quotas() {
            return Ok(project);
        }
        let none = || Why::InProject.because(format!("it has no project id, so nothing would limit it: {remedy}"));
        let own = project.ok_or_else(none)?;
        if let Some(other) = self.projects.insert((served.place.device, own), id.clone()) {
            let shared_with = |id: &VolumeId| {
                Why::InProject.because(format!("it shares its project id {} with volume {id}: {remedy}", own.0))
            };
            self.refuse(pool, &other, &shared_with(id));
            return Err(shared_with(&other));
        }
        Ok(project)
    }
}

fn why_no_record(error: SysError) -> Refusal {
    match error.errno {
        Errno::NODATA => Why::Damaged
            .because("it has no record: was it restored without extended attributes (rsync -X, tar --xattrs)?"),
        Errno::BADMSG => Why::Damaged.because("its record is damaged, or from a later release"),
        _ => format!("its record cannot be read: {error}").into(),
    }
}

/// What the entry of a pool with that name was promised. Where no record says that, it is what it may take up: the limit of its
/// project, or the size of its image.
fn share_of(pool: &Pool, served: &Served, name: &str) -> SysResult<Share> {
    let Ok(directory) = layout::open_volume(&served.directory, name) else { return Ok(Share::default()) };
    let project = project_of(pool, &directory)?;
    let image = file::status_at(&directory, layout::IMAGE).ok();
    if let Ok(record) = Record::read(&served.attributes, name) {
        let allocated = image.map_or(0, |image| image.allocated);
        return Ok(Share::of(&record.spec, pool.inode_size(), project, allocated));
    }
    let quota = project.and_then(|project| served.filesystem.quota_at_start(project).ok());
    let limit = quota.map_or(0, |quota| quota.limit_bytes.max(quota.used_bytes));
    Ok(Share { bytes: image.map_or(0, |image| image.size).max(limit), preallocated: false, project })
}

fn project_of(pool: &Pool, directory: &OwnedFd) -> SysResult<Option<ProjectId>> {
    if pool.has_quotas() { layout::project_of(directory) } else { Ok(None) }
}

/// Sets a quota that did not reach the disk before a power cut back to what the record says. In a pool that is configured
/// without quotas, limits that were set while it had some are removed: they would bind.
fn restore_quota(
    pool: &Pool,
    served: &Served,
    id: &VolumeId,
    project: Option<ProjectId>,
    wanted: (u64, u64),
) -> SysResult<()> {
    let Some(project) = project else { return Ok(()) };
    let wanted = if pool.has_quotas() { wanted } else { (0, 0) };
    match served.filesystem.quota_at_start(project) {
        Ok(quota) if quota.is_limited_to(wanted) => Ok(()),
        Ok(_) => {
            log::warning!("a volume's quota is reset to what it should be volume={id}");
            served.filesystem.set_quota(project, wanted)
        }
        Err(error) if !pool.has_quotas() && NO_QUOTAS.contains(&error.errno) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that a filesystem was made in the image of a volume that says so, and in no other: what tenants could write is
/// never mounted, whatever was copied or renamed.
fn check_kind(served: &Served, id: &VolumeId, kind: VolumeKind) -> Result<(), Refusal> {
    match layout::is_filesystem(&served.attributes, id.as_str()) {
        Ok(found) if found == Kind::has_filesystem(kind) => Ok(()),
        Ok(_) => {
            let kind = Kind::from(kind);
            Err(Why::WrongKind
                .because(format!("its record is that of a {kind}, and its image is not: put back what was there")))
        }
        Err(error) => Err(format!("its image cannot be inspected: {error}").into()),
    }
}

/// Leaves an image that was being grown with either size, and its record in agreement.
fn finish_growth(served: &Served, id: &VolumeId, image: &OwnedFd, record: &mut Record) -> SysResult<FileId> {
    let status = file::status(image)?;
    if status.allocated > status.size {
        // Blocks that were allocated for a growth that did not finish.
        rustix::fs::ftruncate(image, status.size).by("ftruncate")?;
    }
    if let Some(size) = Bytes::try_from(status.size).ok().filter(|size| *size > record.spec.size) {
        record.spec.size = size;
        record.write(&served.attributes, id.as_str())?;
        served.sync(layout::open_volume(&served.directory, id.as_str())?)?;
    }
    Ok(status.id)
}
