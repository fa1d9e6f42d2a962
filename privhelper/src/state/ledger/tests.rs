use std::cell::Cell;

use bulkhead_protocol::{BlockSize, DirectoryMode, Inodes, NameHash, QuotaMode};

use super::*;
use crate::sys::Errno;

const GIB: u64 = 1 << 30;

fn pool(overcommit_permille: u64, reserve: u64) -> PoolConfig {
    PoolConfig {
        name: "fast".parse().expect("a name"),
        directory: "/pool".into(),
        quota: QuotaMode::Enforced,
        overcommit_permille,
        reserve,
    }
}

fn spec(gib: u64, kind: VolumeKind) -> VolumeSpec {
    VolumeSpec { size: size(gib), kind, name_hash: NameHash([0; 32]) }
}

fn size(gib: u64) -> Bytes {
    Bytes::try_from(gib * GIB).expect("a size")
}

fn directory(gib: u64) -> VolumeSpec {
    let inodes = Inodes::try_from(1024).expect("a number of inodes");
    spec(gib, VolumeKind::Directory { inodes, mode: DirectoryMode::try_from(0o755).expect("a mode") })
}

fn image(gib: u64, sparse: bool) -> VolumeSpec {
    spec(gib, VolumeKind::Image { sparse, block_size: BlockSize::B512 })
}

fn ledger() -> Ledger {
    Ledger::new((10, 12))
}

/// 80 GiB are free, and volumes occupy this many.
fn measured(used_gib: u64) -> Measured {
    Measured { space: Space { total: 100 * GIB, free: 80 * GIB }, capacity: (80 + used_gib) * GIB }
}

const PROJECT: Option<ProjectId> = Some(ProjectId(10));

#[test]
fn only_an_image_that_is_not_sparse_is_preallocated() {
    for (spec, preallocated) in [(directory(1), false), (image(1, true), false), (image(1, false), true)] {
        assert_eq!(Share::of(&spec, PROJECT), Share { bytes: GIB, preallocated, project: PROJECT }, "{spec:?}");
    }
}

#[test]
fn a_growth_takes_what_is_new_and_no_second_project() {
    let growth = Share::of(&image(3, false), None).growth_from(size(1));
    assert_eq!(growth, Share { bytes: 2 * GIB, preallocated: true, project: None });
    let growth = Share::of(&directory(3), PROJECT).growth_from(size(1));
    assert_eq!(growth, Share { bytes: 2 * GIB, preallocated: false, project: None });
    assert_eq!(Share::of(&directory(1), PROJECT).growth_from(size(1)).bytes, 0);
}

#[test]
fn what_is_added_is_gone_when_it_is_removed() {
    let mut ledger = ledger();
    let before = ledger.room(measured(0), &pool(1000, 0));
    let shares = [Share::of(&directory(5), PROJECT), Share::of(&image(7, false), None)];
    for share in shares {
        ledger.add(share);
    }
    assert_eq!(ledger.promised, 12 * GIB);
    assert_eq!(ledger.projects.iter().copied().collect::<Vec<_>>(), [ProjectId(10)]);
    for share in shares {
        ledger.remove(share);
    }
    assert_eq!((ledger.promised, ledger.projects.len()), (0, 0));
    assert_eq!(ledger.room(measured(0), &pool(1000, 0)), before);
}

#[test]
fn a_failed_growth_leaves_the_volume_its_project() {
    let mut ledger = ledger();
    ledger.add(Share::of(&directory(1), PROJECT));
    let growth = Share::of(&directory(3), PROJECT).growth_from(size(1));
    ledger.add(growth);
    ledger.remove(growth);
    assert_eq!((ledger.promised, ledger.projects.len()), (GIB, 1));
}

#[test]
fn sums_end_at_their_bounds_and_do_not_wrap() {
    let mut ledger = ledger();
    let huge = Share { bytes: u64::MAX, preallocated: true, project: None };
    let measured = Measured { capacity: u64::MAX, ..measured(0) };
    ledger.add(huge);
    ledger.add(huge);
    assert_eq!(ledger.promised, u64::MAX);
    assert_eq!(ledger.room(measured, &pool(u64::MAX, 0)).available, 0);
    ledger.remove(huge);
    ledger.remove(huge);
    assert_eq!(ledger.promised, 0);
    assert_eq!(ledger.room(measured, &pool(u64::MAX, 0)).available, u64::MAX);
}

#[test]
fn the_room_is_what_is_free_and_used_by_volumes_less_what_is_promised() {
    let mut ledger = ledger();
    ledger.add(Share::of(&directory(30), PROJECT));
    let room = ledger.room(measured(10), &pool(1000, 0));
    assert_eq!(room, Room { total: 100 * GIB, free: 80 * GIB, promised: 30 * GIB, available: 60 * GIB });
}

#[test]
fn overcommit_multiplies_the_capacity_and_the_reserve_is_kept_of_it() {
    let mut ledger = ledger();
    ledger.add(Share::of(&directory(30), PROJECT));
    assert_eq!(ledger.room(measured(0), &pool(2500, 5 * GIB)).available, (200 - 5 - 30) * GIB);
    assert_eq!(ledger.room(measured(0), &pool(2500, 5 * GIB)).free, 75 * GIB);
    assert_eq!(ledger.room(measured(0), &pool(500, 0)).available, 10 * GIB);
    assert_eq!(ledger.room(measured(0), &pool(300, 0)).available, 0, "promised beyond what the pool may promise");
    assert_eq!(ledger.room(measured(0), &pool(1000, 90 * GIB)).free, 0);
}

#[test]
fn only_what_is_preallocated_must_be_free_at_once() {
    let room = Room { total: 100, free: 10, promised: 0, available: 50 };
    assert_eq!((room.limit(false), room.limit(true)), (50, 10));
    let room = Room { total: 100, free: 70, promised: 0, available: 50 };
    assert_eq!((room.limit(false), room.limit(true)), (50, 50));
}

fn take(ledger: &Mutex<Ledger>) -> Option<u32> {
    take_project(ledger, |_| Ok(true)).expect("nothing failed").map(|project| project.0)
}

#[test]
fn project_ids_are_taken_in_rotation() {
    let ledger = Mutex::new(ledger());
    assert_eq!([take(&ledger), take(&ledger)], [Some(10), Some(11)]);
    lock(&ledger).remove(Share { project: Some(ProjectId(10)), ..Share::default() });
    assert_eq!(take(&ledger), Some(12), "one that was just given back is the last to be taken again");
    assert_eq!([take(&ledger), take(&ledger)], [Some(10), None]);
}

#[test]
fn a_project_to_which_something_is_charged_is_not_taken() {
    let ledger = Mutex::new(ledger());
    let found = take_project(&ledger, |project| {
        assert!(ledger.try_lock().is_ok(), "the filesystem may hang, and others need the ledger");
        Ok(project.0 == 12)
    });
    assert_eq!(found, Ok(Some(ProjectId(12))));
    assert_eq!(take_project(&ledger, |_| Ok(false)), Ok(None));
    assert_eq!(take_project(&ledger, |_| Err(Errno::IO)), Err(Errno::IO));
    assert_eq!(lock(&ledger).projects.len(), 1);
}

#[test]
fn every_project_id_of_a_range_is_tried() {
    for size in [1, 2, 3, 7, 10, 1000] {
        for free in 50..50 + size {
            let ledger = Mutex::new(Ledger::new((50, 49 + size)));
            assert_eq!(take_project(&ledger, |project| Ok(project.0 == free)), Ok(Some(ProjectId(free))), "of {size}");
        }
    }
}

#[test]
fn squatted_project_ids_cost_few_looks() {
    for (taken, most) in [(100_000..=549_999, 2), (100_000..=819_999, 8), (100_000..=990_999, 130)] {
        let ledger = Mutex::new(Ledger::new((100_000, 999_999)));
        let looks = Cell::new(0);
        for _ in 0..100 {
            looks.set(0);
            let found = take_project(&ledger, |project| {
                looks.set(looks.get() + 1);
                Ok(!taken.contains(&project.0))
            });
            assert!(matches!(found, Ok(Some(_))), "{found:?}");
            assert!(looks.get() <= most, "{} looks beside {taken:?}", looks.get());
        }
    }
    let (ledger, looks) = (Mutex::new(Ledger::new((100_000, 999_999))), Cell::new(0));
    let found = take_project(&ledger, |_| {
        looks.set(looks.get() + 1);
        Ok(false)
    });
    assert_eq!((found, looks.get()), (Ok(None), TRIES));
}

#[test]
fn the_last_project_id_of_all_does_not_overflow() {
    let ledger = Mutex::new(Ledger::new((u32::MAX, u32::MAX)));
    assert_eq!([take(&ledger), take(&ledger)], [Some(u32::MAX), None]);
}
