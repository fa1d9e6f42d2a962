use bulkhead_protocol::{BlockSize, DirectoryMode, Inodes, NameHash, QuotaMode};

use super::*;

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

const SPACE: Space = Space { total: 100 * GIB, free: 80 * GIB };
const PROJECT: Option<ProjectId> = Some(ProjectId(10));

#[test]
fn only_a_preallocated_image_without_a_project_is_uncounted() {
    for (spec, project, preallocated, uncounted) in [
        (directory(1), PROJECT, false, 0),
        (directory(1), None, false, 0),
        (image(1, true), PROJECT, false, 0),
        (image(1, true), None, false, 0),
        (image(1, false), PROJECT, true, 0),
        (image(1, false), None, true, GIB),
    ] {
        assert_eq!(Share::of(&spec, project), Share { bytes: GIB, preallocated, uncounted, project }, "{spec:?}");
    }
}

#[test]
fn a_growth_takes_what_is_new_and_no_second_project() {
    let growth = Share::of(&image(3, false), None).growth_from(size(1));
    assert_eq!(growth, Share { bytes: 2 * GIB, preallocated: true, uncounted: 2 * GIB, project: None });
    let growth = Share::of(&directory(3), PROJECT).growth_from(size(1));
    assert_eq!(growth, Share { bytes: 2 * GIB, preallocated: false, uncounted: 0, project: None });
    assert_eq!(Share::of(&directory(1), PROJECT).growth_from(size(1)).bytes, 0);
}

#[test]
fn what_is_added_is_gone_when_it_is_removed() {
    let mut ledger = ledger();
    let before = ledger.room(SPACE, 0, &pool(1000, 0));
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
    assert_eq!(ledger.room(SPACE, 0, &pool(1000, 0)), before);
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
    let huge = Share { bytes: u64::MAX, preallocated: true, uncounted: u64::MAX, project: None };
    ledger.add(huge);
    ledger.add(huge);
    assert_eq!(ledger.promised, u64::MAX);
    assert_eq!(ledger.room(SPACE, u64::MAX, &pool(u64::MAX, 0)).available, 0);
    ledger.remove(huge);
    ledger.remove(huge);
    assert_eq!(ledger.promised, 0);
    assert_eq!(ledger.room(SPACE, u64::MAX, &pool(u64::MAX, 0)).available, u64::MAX);
}

#[test]
fn the_room_is_what_is_free_and_used_by_volumes_less_what_is_promised() {
    let mut ledger = ledger();
    ledger.add(Share::of(&directory(30), PROJECT));
    let room = ledger.room(SPACE, 10 * GIB, &pool(1000, 0));
    assert_eq!(room, Room { total: 100 * GIB, free: 80 * GIB, promised: 30 * GIB, available: 60 * GIB });
}

#[test]
fn an_image_that_no_project_counts_is_not_subtracted_twice() {
    let mut ledger = ledger();
    ledger.add(Share::of(&image(20, false), None));
    // Its 20 GiB are missing from what is free, and promised.
    let space = Space { free: 60 * GIB, ..SPACE };
    assert_eq!(ledger.room(space, 0, &pool(1000, 0)).available, 60 * GIB);
}

#[test]
fn overcommit_multiplies_the_capacity_and_the_reserve_is_kept_of_it() {
    let mut ledger = ledger();
    ledger.add(Share::of(&directory(30), PROJECT));
    assert_eq!(ledger.room(SPACE, 0, &pool(2500, 5 * GIB)).available, (200 - 5 - 30) * GIB);
    assert_eq!(ledger.room(SPACE, 0, &pool(2500, 5 * GIB)).free, 75 * GIB);
    assert_eq!(ledger.room(SPACE, 0, &pool(500, 0)).available, 10 * GIB);
    assert_eq!(ledger.room(SPACE, 0, &pool(300, 0)).available, 0, "promised beyond what the pool may promise");
    assert_eq!(ledger.room(SPACE, 0, &pool(1000, 90 * GIB)).free, 0);
}

#[test]
fn only_what_is_preallocated_must_be_free_at_once() {
    let room = Room { total: 100, free: 10, promised: 0, available: 50 };
    assert_eq!((room.limit(false), room.limit(true)), (50, 10));
    let room = Room { total: 100, free: 70, promised: 0, available: 50 };
    assert_eq!((room.limit(false), room.limit(true)), (50, 50));
}

#[test]
fn project_ids_are_taken_in_rotation() {
    let mut ledger = ledger();
    let take = |ledger: &mut Ledger| ledger.take_project(|_| Ok(true)).map(|project| project.0);
    assert_eq!([take(&mut ledger), take(&mut ledger)], [Ok(10), Ok(11)]);
    ledger.remove(Share { project: Some(ProjectId(10)), ..Share::default() });
    assert_eq!(take(&mut ledger), Ok(12), "one that was just given back is the last to be taken again");
    assert_eq!(take(&mut ledger), Ok(10));
    assert_eq!(take(&mut ledger), Err(Errno::NOSPC));
}

#[test]
fn a_project_to_which_something_is_charged_is_not_taken() {
    let mut ledger = ledger();
    assert_eq!(ledger.take_project(|project| Ok(project.0 == 12)), Ok(ProjectId(12)));
    assert_eq!(ledger.take_project(|_| Ok(false)), Err(Errno::NOSPC));
    assert_eq!(ledger.take_project(|_| Err(Errno::IO)), Err(Errno::IO));
    assert_eq!(ledger.projects.len(), 1);
}

#[test]
fn the_last_project_id_of_all_does_not_overflow() {
    let mut ledger = Ledger::new((u32::MAX, u32::MAX));
    assert_eq!(ledger.take_project(|_| Ok(true)), Ok(ProjectId(u32::MAX)));
    assert_eq!(ledger.take_project(|_| Ok(true)), Err(Errno::NOSPC));
}
