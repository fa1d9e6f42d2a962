use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use bulkhead_protocol::{BlockSize, Bytes, DirectoryMode, Inodes, NameHash, QuotaMode, SnapshotOf};

use super::*;
use crate::bookkeeping::Reserve;
use crate::sys::{Errno, Error as SysError};

const GIB: u64 = 1 << 30;

fn pool(overcommit_permille: u64, reserve: u64) -> PoolConfig {
    PoolConfig {
        name: "fast".parse().expect("a name"),
        directory: "/pool".into(),
        quota: QuotaMode::Enforced,
        overcommit_permille,
        reserve: Reserve::Bytes(reserve),
        filesystems: 0,
        extents: 0,
    }
}

fn spec(gib: u64, kind: VolumeKind) -> VolumeSpec {
    VolumeSpec { size: Bytes::try_from(gib * GIB).expect("a size"), kind, name_hash: NameHash([0; 32]) }
}

fn directory(gib: u64) -> VolumeSpec {
    let inodes = Inodes::try_from(1024).expect("a number of inodes");
    spec(gib, VolumeKind::Directory { inodes, mode: DirectoryMode::try_from(0o755).expect("a mode") })
}

fn image(gib: u64, sparse: bool) -> VolumeSpec {
    spec(gib, VolumeKind::Image { sparse, block_size: BlockSize::B512 })
}

/// 80 of 100 GiB are free, and volumes occupy this many.
fn measured(used_gib: u64) -> Measured {
    let (total, free) = (100 * GIB, 80 * GIB);
    let space = Space { total, in_use: total - free, free, inodes_in_use: 10, free_inodes: 1000 };
    Measured { space, capacity: (80 + used_gib) * GIB, notes: 0 }
}

const PROJECT: Option<ProjectId> = Some(ProjectId(10));

#[test]
fn only_an_image_that_is_not_sparse_is_preallocated() {
    for (spec, preallocated) in [(directory(1), false), (image(1, true), false), (image(1, false), true)] {
        assert_eq!(Share::of(&spec, 0, PROJECT, 7), Share { bytes: GIB, preallocated, project: PROJECT }, "{spec:?}");
    }
}

#[test]
fn inodes_are_promised_with_what_each_takes() {
    assert_eq!(Share::of(&directory(1), 512, None, 0).bytes, GIB + 1024 * 512);
    assert_eq!(Share::of(&image(1, false), 512, None, 0).bytes, GIB, "an image has none");
}

#[test]
fn a_snapshot_is_promised_what_it_refers_to_and_what_is_noted_of_that() {
    let snapshot = spec(9, VolumeKind::Snapshot { of: SnapshotOf::Filesystem });
    let share = Share { bytes: (202 << 20) + 8192, preallocated: false, project: PROJECT };
    assert_eq!(Share::of(&snapshot, 512, PROJECT, 200 << 20), share);
    assert_eq!(Share::of(&snapshot, 512, None, u64::MAX).bytes, u64::MAX);
}

#[test]
fn volumes_occupy_no_more_than_they_are_charged_and_no_more_than_is_in_use() {
    for (charged, unexplained, at_most) in [(5, None, 5), (5, Some(7), 5), (7, Some(5), 5), (7, Some(0), 0)] {
        assert_eq!(Occupied { charged, unexplained }.at_most(), at_most);
    }
}

#[test]
fn the_room_is_what_is_free_and_used_by_volumes_less_what_is_promised() {
    let room = measured(10).room(&pool(1000, 0), 30 * GIB);
    assert_eq!(room, Room { total: 100 * GIB, free: 80 * GIB, promised: 30 * GIB, limit: 90 * GIB });
    assert_eq!(room.available(), 60 * GIB);
}

#[test]
fn a_hundredth_is_kept_for_notes_and_what_each_volume_is_itself() {
    assert_eq!([0, 1, 1000].map(|volumes| notes(101 * GIB, volumes) - GIB), [0, 12 << 10, 12_000 << 10]);
    assert_eq!(notes(u64::MAX, usize::MAX), u64::MAX);
    let measured = Measured { notes: 2 * GIB, ..measured(10) };
    let room = measured.room(&pool(1000, 0), 30 * GIB);
    assert_eq!((room.limit, room.free), (88 * GIB, 78 * GIB));
    assert_eq!(measured.with_more(1).room(&pool(1000, 0), 30 * GIB).limit, room.limit - (12 << 10));
}

#[test]
fn overcommit_multiplies_the_capacity_and_the_reserve_is_kept_of_it() {
    let room = |permille, reserve| measured(0).room(&pool(permille, reserve), 30 * GIB);
    assert_eq!(room(2500, 5 * GIB).available(), (200 - 5 - 30) * GIB);
    assert_eq!(room(2500, 5 * GIB).free, 75 * GIB);
    assert_eq!(room(500, 0).available(), 10 * GIB);
    assert_eq!(room(300, 0).available(), 0, "promised beyond what the pool may promise");
    assert_eq!(room(1000, 90 * GIB).free, 0);
    let endless = Measured { capacity: u64::MAX, ..measured(0) };
    assert_eq!(endless.room(&pool(u64::MAX, 0), 0).available(), u64::MAX, "it ends at its bound");
}

#[test]
fn without_inodes_there_is_no_room() {
    let lacking = |free_inodes| Measured { space: Space { free_inodes, ..measured(0).space }, ..measured(0) };
    let room = |free_inodes| lacking(free_inodes).room(&pool(1000, 0), 0);
    assert_eq!([0, 3, 4].map(|inodes| room(inodes).for_volume(true)), [0, 0, 80 * GIB]);
    assert_eq!([0, 3, 4].map(|inodes| lacking(inodes).space.lacks_inodes()), [true, true, false]);
}

#[test]
fn only_what_is_preallocated_must_be_free_at_once() {
    let room = Room { total: 100, free: 10, promised: 0, limit: 50 };
    assert_eq!((room.for_volume(false), room.for_volume(true)), (50, 10));
    let room = Room { total: 100, free: 70, promised: 0, limit: 50 };
    assert_eq!((room.for_volume(false), room.for_volume(true)), (50, 50));
}

/// Volumes that have projects.
#[derive(Default)]
struct Volumes(RefCell<BTreeSet<ProjectId>>);

impl Volumes {
    fn take(&self, ids: &ProjectIds, is_unused: impl Fn(u32) -> SysResult<bool>) -> SysResult<Option<u32>> {
        let taken = ids.take(|project| self.0.borrow_mut().insert(project), |project| is_unused(project.0));
        taken.map(|taken| taken.map(|project| project.0))
    }
}

#[test]
fn project_ids_are_taken_in_rotation() {
    let (ids, volumes) = (ProjectIds::new((10, 12), 0), Volumes::default());
    let take = || volumes.take(&ids, |_| Ok(true)).expect("nothing failed");
    assert_eq!([take(), take()], [Some(10), Some(11)]);
    volumes.0.borrow_mut().remove(&ProjectId(10));
    assert_eq!(take(), Some(12), "one that was just given back is the last to be taken again");
    assert_eq!([take(), take()], [Some(10), None]);
}

#[test]
fn a_project_to_which_something_is_charged_is_not_taken() {
    let take =
        |is_unused: fn(u32) -> SysResult<bool>| Volumes::default().take(&ProjectIds::new((10, 12), 0), is_unused);
    assert_eq!(take(|project| Ok(project == 12)), Ok(Some(12)));
    assert_eq!(take(|_| Ok(false)), Ok(None));
    assert_eq!(take(|_| Err(SysError::of(Errno::IO))), Err(SysError::of(Errno::IO)));
}

#[test]
fn every_project_id_of_a_range_is_tried() {
    for size in [1, 2, 3, 7, 10, 1000] {
        for free in 50..50 + size {
            let found = Volumes::default().take(&ProjectIds::new((50, 49 + size), 0), |project| Ok(project == free));
            assert_eq!(found, Ok(Some(free)), "of {size}");
        }
    }
}

#[test]
fn squatted_project_ids_cost_few_looks() {
    for (taken, most) in [(100_000..=549_999, 2), (100_000..=819_999, 8), (100_000..=990_999, 130)] {
        let (ids, volumes, looks) = (ProjectIds::new((100_000, 999_999), 0), Volumes::default(), Cell::new(0));
        for _ in 0..100 {
            looks.set(0);
            let found = volumes.take(&ids, |project| {
                looks.set(looks.get() + 1);
                Ok(!taken.contains(&project))
            });
            assert!(matches!(found, Ok(Some(_))), "{found:?}");
            assert!(looks.get() <= most, "{} looks beside {taken:?}", looks.get());
        }
    }
    let looks = Cell::new(0);
    let found = Volumes::default().take(&ProjectIds::new((100_000, 999_999), 0), |_| {
        looks.set(looks.get() + 1);
        Ok(false)
    });
    assert_eq!((found, looks.get()), (Ok(None), TRIES));
}

#[test]
fn the_last_project_id_of_all_does_not_overflow() {
    let (ids, volumes) = (ProjectIds::new((u32::MAX, u32::MAX), 0), Volumes::default());
    let take = || volumes.take(&ids, |_| Ok(true)).expect("nothing failed");
    assert_eq!([take(), take()], [Some(u32::MAX), None]);
}
