//! A helper with volumes that can be copied, all in memory: a block volume `block`, one with a filesystem of its own `image`,
//! a directory `directory`, and `pieces`, a block volume that is too fragmented.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bulkhead_protocol::*;

use super::fake::{Act, FakeHelper, Greeting, failure, welcome};

/// When all copies are made: 1.5 seconds after the beginning of 1970.
pub const COPIED: u64 = 1_500_000_000;

/// The size of `block`.
pub const BLOCK: u64 = 8 << 20;

/// The size of `image`.
pub const IMAGE: u64 = 300 << 20;

type Volumes = BTreeMap<VolumeId, (VolumeSpec, Option<Origin>)>;

/// Starts it.
pub fn start() -> FakeHelper {
    let (block_size, mode) = (BlockSize::B4096, DirectoryMode::try_from(0o755).unwrap());
    let image = VolumeKind::Image { sparse: false, block_size };
    let volumes = [
        ("block", BLOCK, image),
        ("directory", BLOCK, VolumeKind::Directory { inodes: 1024.try_into().unwrap(), mode }),
        ("image", IMAGE, VolumeKind::Filesystem { sparse: false, mode }),
        ("pieces", BLOCK, image),
    ];
    let spec = |size: u64, kind| VolumeSpec { size: size.try_into().unwrap(), kind, name_hash: NameHash([0; 32]) };
    let volumes = volumes.map(|(id, size, kind)| (id.parse().unwrap(), (spec(size, kind), None)));
    let volumes: Arc<Mutex<Volumes>> = Arc::new(Mutex::new(volumes.into()));
    let fake = FakeHelper::start(move |request| match answer(&mut volumes.lock().unwrap(), request) {
        Ok(reply) => Act::Answer(Ok(reply)),
        Err(kind) => failure(kind),
    });
    let welcome = Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) };
    fake.greet_with(Greeting::Welcome(Box::new(welcome)));
    fake
}

fn answer(volumes: &mut Volumes, request: &Request) -> Result<Reply, ErrorKind> {
    let known = |id: &VolumeId| volumes.get(id).cloned().ok_or(ErrorKind::NotFound);
    let is_snapshot = |spec: &VolumeSpec| matches!(spec.kind, VolumeKind::Snapshot { .. });
    match request {
        Request::PoolCounts { .. } => Ok(Reply::Counts {
            filesystem_limit: 300,
            filesystems: 1,
            inodes: 0,
            free_inodes: 0,
            snapshots: u32::try_from(volumes.values().filter(|(spec, _)| is_snapshot(spec)).count()).unwrap(),
            extent_limit: 200_000,
            snapshot_bytes: 0,
        }),
        Request::Usage { volume, .. } => Ok(Reply::Usage(Usage {
            pool: "default".parse().unwrap(),
            spec: known(volume)?.0,
            used_bytes: Some(4096),
            available_bytes: Some(4096),
            used_inodes: None,
            available_inodes: None,
            targets: 0,
            condition: None,
        })),
        // In two parts, as of an image in very many pieces.
        Request::Sharing { volume, from } => match (known(volume)?.0.kind, *from) {
            (VolumeKind::Directory { .. }, _) => Err(ErrorKind::Unsupported),
            (_, 0) => Ok(Reply::Sharing { allocated: 1 << 20, shared: 4096, next: Some(1 << 19) }),
            _ => Ok(Reply::Sharing { allocated: 1 << 20, shared: 8192, next: None }),
        },
        Request::Origin { volume } => Ok(Reply::Origin(known(volume)?.1)),
        Request::CreateSnapshot { volume, snapshot, name_hash } => {
            let (spec, origin) = known(volume)?;
            let of = match spec.kind {
                VolumeKind::Image { .. } if volume.as_str() == "pieces" => {
                    return Err(ErrorKind::TooFragmented { extents: 250_000, limit: 200_000 });
                }
                VolumeKind::Image { block_size, .. } => SnapshotOf::Image { block_size },
                VolumeKind::Filesystem { .. } => SnapshotOf::Filesystem,
                VolumeKind::Directory { .. } => return Err(ErrorKind::Unsupported),
                VolumeKind::Snapshot { .. } => return Err(ErrorKind::Invalid),
            };
            let spec = VolumeSpec { kind: VolumeKind::Snapshot { of }, name_hash: *name_hash, ..spec };
            copy(volumes, snapshot, spec, volume, origin)?;
            Ok(Reply::Snapshot(listed(volumes, snapshot).ok_or(ErrorKind::NotFound)?))
        }
        Request::CreateGroup { members, name_hash } => {
            for Member { volume, snapshot } in members.as_slice() {
                let (volume, snapshot, name_hash) = (volume.clone(), snapshot.clone(), *name_hash);
                answer(volumes, &Request::CreateSnapshot { volume, snapshot, name_hash })?;
            }
            Ok(Reply::Done)
        }
        Request::CreateFrom { volume, spec, source, .. } => {
            let origin = known(source).ok().and_then(|(_, origin)| origin);
            if !volumes.contains_key(volume) && !volumes.contains_key(source) {
                return Err(ErrorKind::NotFound);
            }
            if known(source).is_ok_and(|(spec, _)| matches!(spec.kind, VolumeKind::Directory { .. })) {
                return Err(ErrorKind::Unsupported);
            }
            copy(volumes, volume, *spec, source, origin)?;
            Ok(Reply::Size(volumes[volume].0.size))
        }
        Request::DeleteSnapshot { snapshot: id } | Request::Delete { volume: id } => {
            let wanted = matches!(request, Request::DeleteSnapshot { .. });
            if is_snapshot(&known(id)?.0) != wanted {
                return Err(ErrorKind::WrongKind);
            }
            volumes.remove(id);
            Ok(Reply::Done)
        }
        Request::List { .. } => Ok(Reply::Volumes(UpTo::default())),
        Request::ListSnapshots { after, of, limit } => {
            let all = volumes.keys().filter_map(|id| listed(volumes, id));
            let wanted = all.filter(|snapshot| after.as_ref().is_none_or(|after| snapshot.snapshot > *after));
            let wanted = wanted.filter(|snapshot| of.as_ref().is_none_or(|of| snapshot.origin.source == *of));
            let page: Vec<_> = wanted.take(MAX_SNAPSHOTS.min((*limit).into())).collect();
            Ok(Reply::Snapshots(page.try_into().unwrap()))
        }
        Request::Delta { base, from, .. } => Ok(delta(base.is_some(), *from)),
        other => panic!("{other:?}"),
    }
}

/// Snapshots hold data in every second block up to 2 MiB, 256 in all; they differ in the first 8 KiB.
fn delta(is_difference: bool, from: u64) -> Reply {
    let all = if is_difference { vec![(0, 8192)] } else { (0..256).map(|number| (number * 8192, 4096)).collect() };
    let beyond = all.into_iter().filter(|(offset, _)| *offset >= from);
    let mut ranges: Vec<_> = beyond.map(|(offset, length)| Range { offset, length }).collect();
    let next = ranges.get(MAX_RANGES).map(|range| range.offset);
    ranges.truncate(MAX_RANGES);
    Reply::Ranges { ranges: ranges.try_into().unwrap(), next }
}

fn copy(
    volumes: &mut Volumes,
    id: &VolumeId,
    spec: VolumeSpec,
    source: &VolumeId,
    origin: Option<Origin>,
) -> Result<(), ErrorKind> {
    if let Some((found, origin)) = volumes.get(id) {
        let is_same = found.kind == spec.kind && found.name_hash == spec.name_hash;
        let of_same = origin.as_ref().is_some_and(|origin| origin.source == *source);
        return if is_same && of_same { Ok(()) } else { Err(ErrorKind::AlreadyExists) };
    }
    let family = origin.map_or_else(|| source.clone(), |origin| origin.family);
    let origin = Origin { source: source.clone(), family, copied: COPIED };
    volumes.insert(id.clone(), (spec, Some(origin)));
    Ok(())
}

fn listed(volumes: &Volumes, id: &VolumeId) -> Option<Snapshot> {
    let (spec, origin) = volumes.get(id)?;
    let VolumeKind::Snapshot { of } = spec.kind else { return None };
    Some(Snapshot {
        snapshot: id.clone(),
        pool: "default".parse().unwrap(),
        size: spec.size,
        block: of != SnapshotOf::Filesystem,
        allocated: 4096,
        origin: origin.clone()?,
    })
}
