//! `requota`: puts each volume of a pool into a project of its own, after the pool was copied by a program that does not
//! copy project ids, or was in use with `quota=none`.
//!
//! A volume's own directory comes last: without a project there a start does not serve the volume, so one that was left
//! half-done is never taken for one that is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use bulkhead_privhelper::attributes::{self, Attribute};
use bulkhead_privhelper::layout::{self, Entry, MARKER, Record};
use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::quota::{self, Look, ProjectId, ProjectQuota};
use bulkhead_privhelper::quotastate::{self, Enforcement};
use bulkhead_privhelper::start::{host, judge, marker};
use bulkhead_privhelper::{Called, SysError, file, limits, walk, xflags};
use bulkhead_protocol::{VolumeId, VolumeKind};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::lines::{counted, describe};
use crate::options::{Options, parse};
use crate::tree::{Found, Walk};
use crate::{in_use, neighbours, open_to_write};

/// A tree that changes under the walk is walked again so many times.
const ATTEMPTS: usize = 10;
/// How many more entries than inodes a volume may have that is in use.
const MORE_ENTRIES: u64 = 1_000_000;
const STOP: &str = "stop the helper first: systemctl stop bulkhead-privhelper.socket bulkhead-privhelper.service; \
                    in a container, see \"Stop and start the helper\" in docs/operate.md";

/// A pool that no helper serves, and none can as long as this lives.
struct Pool {
    directory: OwnedFd,
    _locks: [OwnedFd; 2],
    ids: (u32, u32),
    writes: bool,
    while_in_use: bool,
    /// Which volume has a project.
    owners: BTreeMap<u32, VolumeId>,
    /// The projects of volumes in other pools on the filesystem.
    taken: BTreeSet<u32>,
}

/// Goes through the volumes, with a line for each. Returns whether each is limited: at the end, or already if nothing is
/// to be changed.
pub fn requota(arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = parse(arguments).map_err(|complaint| format!("requota: {complaint}"))?;
    let mut pool = Pool::open(&options)?;
    let path = shown(&options.pool).to_string();
    let volumes = pool.volumes().map_err(|error| format!("cannot list {path}: {error}"))?;
    if options.writes && !options.while_in_use {
        pool.refuse_in_use(&volumes)?;
    }
    let mut wrong = 0_usize;
    for (id, own) in &volumes {
        let (said, is_right) = pool.limit(id, *own).unwrap_or_else(|complaint| (complaint, false));
        println!("{} {id}: {said}", if is_right { "ok     " } else { "FAILED " });
        wrong = wrong.saturating_add(usize::from(!is_right));
    }
    println!("{} in {path}, {wrong} of them not limited", counted(volumes.len(), "volume"));
    Ok(wrong == 0)
}

impl Pool {
    fn open(options: &Options) -> Result<Self, String> {
        let path = shown(&options.pool).to_string();
        let directory = open_to_write(&options.pool).map_err(|error| format!("cannot open {path}: {error}"))?;
        let text = judge::marker::read(&directory).map_err(|error| match error.errno {
            Errno::NOENT => format!("{path} is not a pool: it has no {MARKER}; is its disk mounted?"),
            _ => format!("cannot read {path}/{MARKER}: {error}"),
        })?;
        if text.split(|byte| *byte == b'\n').next() != Some(marker::HEADER.as_bytes()) {
            return Err(format!("{path}/{MARKER} is not the marker of a pool, or is that of another release"));
        }
        check_quotas(&directory, &path)?;
        let locks = lock(&directory, &options.pool)?;
        let taken = neighbours::projects(&options.pool, &directory, &options.others)?;
        let Options { ids, writes, while_in_use, .. } = *options;
        Ok(Self { directory, _locks: locks, ids, writes, while_in_use, owners: BTreeMap::new(), taken })
    }

    /// Limits are lifted while files are moved into a project: whoever writes to a volume then could fill the pool.
    fn refuse_in_use(&self, volumes: &[(VolumeId, Option<ProjectId>)]) -> Result<(), String> {
        let ids = volumes.iter().map(|(id, _)| id).collect();
        match in_use::first(&self.directory, &ids) {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(format!(
                "{what}; end what uses it and unmount or detach it, or give --while-in-use: whoever uses a volume could fill the pool meanwhile"
            )),
            Err(error) => Err(format!("cannot find out whether a volume is in use: {error}; see --while-in-use")),
        }
    }

    /// The volumes, each with the project that it has for itself, if it has one.
    fn volumes(&mut self) -> Result<Vec<(VolumeId, Option<ProjectId>)>, SysError> {
        let mut ids = Vec::new();
        walk::each_entry(&self.directory, |name| {
            if let Entry::Volume(id) = Entry::of(&name.to_string_lossy()) {
                ids.push(id);
            }
            Ok(())
        })?;
        ids.sort();
        let mut volumes = Vec::new();
        for id in ids {
            let outer = match layout::open_volume(&self.directory, id.as_str()) {
                Err(SysError { errno: Errno::NOTDIR | Errno::LOOP | Errno::NOENT, .. }) => continue,
                outer => outer?,
            };
            // The next start empties it.
            if layout::is_deleted_in_place(&file::status(&outer)?) {
                continue;
            }
            let own = layout::project_of(&outer)?.filter(|own| !self.is_taken(own.0));
            if let Some(own) = own {
                self.owners.insert(own.0, id.clone());
            }
            volumes.push((id, own));
        }
        Ok(volumes)
    }

    /// Puts a volume into its project, or into a new one. Returns what was done, and whether the volume is limited by now.
    fn limit(&mut self, id: &VolumeId, own: Option<ProjectId>) -> Result<(String, bool), String> {
        let cannot = |what: &'static str| move |error: SysError| format!("cannot {what}: {error}");
        let outer = layout::open_volume(&self.directory, id.as_str()).map_err(cannot("open its directory"))?;
        let value = attributes::get(&outer, Attribute::Record);
        let value = value.and_then(|value| value.ok_or(SysError::of(Errno::NODATA)));
        let record = value.and_then(|value| Record::decode(value.as_slice()).ok_or(SysError::of(Errno::BADMSG)));
        let record = record.map_err(|error| match error.errno {
            Errno::NODATA => {
                "it has no record, so its size is not known: copy it again with extended attributes".to_owned()
            }
            Errno::BADMSG => "its record is damaged, or from a later release".to_owned(),
            _ => format!("cannot read its record: {error}"),
        })?;
        let project = own.map_or_else(|| self.free_project(), Ok)?;
        self.owners.insert(project.0, id.clone());
        let wanted = match record.spec.kind {
            VolumeKind::Directory { inodes, .. } => limits(record.spec.size, inodes),
            VolumeKind::Image { .. } | VolumeKind::Filesystem { .. } | VolumeKind::Snapshot { .. } => (0, 0),
        };
        let before = quota::get(&self.directory, Look::Waiting, project).map_err(cannot("read its quota"))?;
        let charged = self.charge(id, &outer, project, before);
        // Whatever became of the files, limits that were lifted for that are set again.
        let mut after = quota::get(&self.directory, Look::Waiting, project).map_err(cannot("read its quota"))?;
        if self.writes && !after.is_limited_to(wanted) {
            quota::set(&self.directory, project, wanted).map_err(cannot("set its quota"))?;
            after = quota::get(&self.directory, Look::Waiting, project).map_err(cannot("read its quota"))?;
        }
        let mut found = charged.map_err(|error| match error.errno {
            Errno::AGAIN => "it changes faster than it can be gone through: end what uses it, and repeat".to_owned(),
            _ => cannot("go through its files")(error),
        })?;
        if !before.is_limited_to(wanted) {
            found.moved = found.moved.saturating_add(1);
        }
        if self.writes && found.moved > 0 {
            file::sync(&outer).map_err(cannot("sync its directory"))?;
        }
        let (mut said, is_right) = describe(&found, project, self.writes, wanted.0, after);
        if self.writes && own.is_none() && !found.is_complete() {
            said.push_str("; it is not served until all that counts is in its project");
        }
        Ok((said, is_right && (!self.writes || after.is_limited_to(wanted))))
    }

    /// Puts everything in a volume into a project, the volume's own directory last.
    fn charge(&self, id: &VolumeId, outer: &OwnedFd, project: ProjectId, now: ProjectQuota) -> Result<Found, SysError> {
        let is_of_another =
            |project: u32| self.owners.get(&project).map_or_else(|| self.taken.contains(&project), |owner| owner != id);
        let (title, found, told) = (id.as_str(), Found::default(), Instant::now());
        let (is_of_another, most) = (&is_of_another as _, self.most_entries()?);
        let mut walk = Walk { title, project: project.0, is_of_another, writes: self.writes, most, found, told };
        // A limit would refuse what is beyond it, and it is set again in the end: by this, or by the next start.
        if self.writes && !now.is_limited_to((0, 0)) && !self.is_charged(&mut walk, outer)? {
            quota::set(&self.directory, project, (0, 0))?;
        }
        self.repeat(&mut walk, outer)?;
        // This makes it one that is served, with a limit that holds for all that is in it.
        if walk.found.is_complete() {
            walk.charge_open(outer, true)?;
        }
        Ok(walk.found)
    }

    /// Returns whether there is nothing to do, so that limits need not be lifted.
    fn is_charged(&self, walk: &mut Walk<'_>, outer: &OwnedFd) -> Result<bool, SysError> {
        walk.writes = false;
        let looked = self.repeat(walk, outer);
        walk.writes = self.writes;
        let found = std::mem::take(&mut walk.found);
        looked.map(|()| found.moved == 0)
    }

    /// Returns how many entries a volume may turn out to have. While it is used, it may get more without end.
    fn most_entries(&self) -> Result<u64, SysError> {
        let found = rustix::fs::fstatvfs(&self.directory).by("fstatfs")?;
        let inodes = found.f_files.saturating_sub(found.f_ffree);
        Ok(if self.while_in_use { inodes.saturating_mul(4).saturating_add(MORE_ENTRIES) } else { u64::MAX })
    }

    /// Returns whether a project is that of another volume, in this pool or beside it.
    fn is_taken(&self, project: u32) -> bool {
        self.owners.contains_key(&project) || self.taken.contains(&project)
    }

    fn repeat(&self, walk: &mut Walk<'_>, outer: &OwnedFd) -> Result<(), SysError> {
        let mut moved = 0_u64;
        for _ in 0..ATTEMPTS {
            match walk.below(outer) {
                Err(SysError { errno: Errno::AGAIN, .. }) => {}
                done => {
                    walk.found.moved = walk.found.moved.saturating_add(moved);
                    return done;
                }
            }
            moved = moved.saturating_add(std::mem::take(&mut walk.found).moved);
        }
        Err(SysError::of(Errno::AGAIN))
    }

    /// A project of the range that no volume has, and to which nothing is charged.
    fn free_project(&self) -> Result<ProjectId, String> {
        let (first, last) = self.ids;
        for id in (first..=last).filter(|id| !self.is_taken(*id)) {
            let found = quota::get(&self.directory, Look::Waiting, ProjectId(id));
            if found.map_err(|error| format!("cannot look at project {id}: {error}"))?.is_unused() {
                return Ok(ProjectId(id));
            }
        }
        Err(format!("no project id from {first} to {last} is free; give a wider --project-ids, to the helper as well"))
    }
}

fn check_quotas(directory: &OwnedFd, path: &str) -> Result<(), String> {
    match quotastate::state(directory).map_err(|error| format!("cannot query the quotas of {path}: {error}"))?.0 {
        Enforcement::Enforced => {}
        Enforcement::Off | Enforcement::Accounted => {
            return Err(format!(
                "{path} has no project quotas that are enforced: unmount it, and mount it with -o prjquota; ext4 also needs tune2fs -O project,quota -Q prjquota on the unmounted device"
            ));
        }
    }
    match xflags::attributes(directory).map(|found| found.fsx_projid) {
        Ok(0) => Ok(()),
        Ok(project) => Err(format!("{path} itself is in project {project}; run: chattr -P -p 0 {path}")),
        Err(error) => Err(format!("cannot read the project id of {path}: {error}")),
    }
}

/// Keeps helpers from a pool, and from its filesystem: project ids belong to that.
fn lock(directory: &OwnedFd, path: &Path) -> Result<[OwnedFd; 2], String> {
    let path = shown(path);
    let cannot = |error: SysError| match error.errno {
        Errno::AGAIN => format!("{path} is in use; {STOP}"),
        Errno::ADDRINUSE => format!("a pool on the filesystem of {path} is in use; {STOP}"),
        _ => format!("cannot lock {path}: {error}"),
    };
    let marker = file::open(directory, MARKER, OFlags::RDONLY).map_err(cannot)?;
    walk::lock(&marker).map_err(cannot)?;
    let device = file::status(directory).map_err(cannot)?.id.device;
    Ok([marker, host::claim(device).map_err(cannot)?])
}
