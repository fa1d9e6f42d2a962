use super::*;
use crate::bookkeeping::released;
use crate::state::aside::testing::aside;
use crate::state::testing::{id, pool, target, volume};
use crate::sys::quota::ProjectQuota;

fn empty() -> Volumes {
    FoundVolumes::default().all_known()
}

fn table(ids: &[&str]) -> Volumes {
    let volumes = empty();
    for (index, name) in ids.iter().enumerate() {
        let pool = pool(["even", "odd"][index % 2]);
        assert!(volumes.add(id(name), volume(&pool)));
    }
    volumes
}

fn published(path: &str) -> Published {
    let file = |inode| FileId { device: (0, 0), inode };
    let target = Arc::new(target(path));
    Published { target, source: file(2), flags: MountFlags::default(), proof: Proof::Place(file(3)) }
}

fn change(volumes: &Volumes, name: &str, change: impl FnOnce(&mut Volume)) {
    volumes.change(&id(name), |_| Ok(()), change).expect("nothing is checked");
}

fn refuse(_: u64) -> Result<(), Error> {
    Err(crate::state::busy("no"))
}

/// What the sums must be: counted anew.
fn check_sums(volumes: &Volumes) {
    let table = lock(&volumes.0);
    let mut counted = BTreeMap::<_, Sums>::new();
    for row in table.rows.values() {
        let sums = counted.entry(row.pool().filesystem()).or_default();
        sums.promised += row.share().bytes;
        sums.rows += 1;
        sums.projects.extend(row.share().project);
    }
    let kept: BTreeMap<_, _> = table.sums.iter().filter(|(_, sums)| **sums != Sums::default()).collect();
    assert_eq!(kept, counted.iter().filter(|(_, sums)| **sums != Sums::default()).collect());
    assert_eq!(table.targets, table.rows.values().map(Row::targets).sum::<usize>());
}

#[test]
fn an_id_is_taken_once() {
    let volumes = table(&["vol-a"]);
    assert!(!volumes.add(id("vol-a"), volume(&pool("other"))));
    let first = volumes.get(&id("vol-a")).expect("the first one stays");
    assert_eq!(first.pool.config.name.as_str(), "even");
}

#[test]
fn a_page_begins_after_an_id_and_ends_at_its_limit() {
    let volumes = table(&["vol-c", "vol-a", "vol-d", "vol-b"]);
    let page = |after: Option<&str>, limit| {
        volumes.page(after.map(id).as_ref(), limit, |id, _| Some(id.as_str().to_owned())).join(" ")
    };
    assert_eq!(page(None, 2), "vol-a vol-b");
    assert_eq!(page(Some("vol-b"), 2), "vol-c vol-d");
    assert_eq!(page(Some("vol-bb"), 9), "vol-c vol-d", "the id need not exist");
    assert_eq!(page(Some("vol-d"), 2), "");
    assert_eq!(page(None, 0), "");
}

#[test]
fn volumes_are_counted_by_pool_and_deleted_ones_apart() {
    let volumes = table(&["vol-a", "vol-b", "vol-c"]);
    volumes.delete(&id("vol-a"), &aside(".deleted.1.vol-a"), CallId(7));
    let count = |name: &str| volumes.count(&name.parse().expect("a name"));
    assert_eq!((count("even"), count("odd"), count("none")), ((1, 1), (1, 0), (0, 0)));
    assert_eq!(volumes.number(), 3, "a deleted volume counts until nothing is left of it");
}

#[test]
fn a_row_keeps_its_share_from_being_made_to_being_gone() {
    let (volumes, pool, name) = (empty(), pool("fast"), "fast".parse().expect("a name"));
    let share = Share { bytes: 4096, preallocated: false, project: None };
    volumes
        .begin(&id("vol-a"), &pool, share, |promised| {
            assert_eq!(promised, 0);
            Ok(())
        })
        .expect("there is room");
    assert!(volumes.begin(&id("vol-b"), &pool, share, refuse).is_err());
    assert!(volumes.claim(&id("vol-a"), ProjectId(7)));
    assert!(!volumes.claim(&id("vol-b"), ProjectId(8)), "nobody makes it");
    assert_eq!((volumes.promised(&pool), volumes.has_project(&pool, ProjectId(7))), (4096, true));
    assert!(volumes.get(&id("vol-a")).is_none(), "it is not there yet");
    check_sums(&volumes);
    assert!(volumes.add(id("vol-a"), Volume { project: Some(ProjectId(7)), ..volume(&pool) }));
    check_sums(&volumes);
    volumes.delete(&id("vol-a"), &aside(".deleted.1.vol-a"), CallId(7));
    assert!(volumes.get(&id("vol-a")).is_none() && volumes.is_deleted(&pool, ".deleted.1.vol-a"));
    assert!(!volumes.is_deleted(&pool, "vol-a"));
    assert_eq!(volumes.projects(&pool), [ProjectId(7)].into());
    assert_eq!((volumes.promised(&pool), volumes.has_project(&pool, ProjectId(7))), (4096, true));
    volumes.forget(&name, &released(".deleted.1.vol-a"));
    assert_eq!((volumes.promised(&pool), volumes.number()), (0, 0));
    assert!(!volumes.has_project(&pool, ProjectId(7)));
    check_sums(&volumes);
}

#[test]
fn only_what_is_being_made_is_left_where_it_is() {
    let (volumes, pool) = (table(&["vol-a"]), pool("even"));
    volumes.begin(&id("vol-b"), &pool, Share { bytes: 1, ..Share::default() }, |_| Ok(())).expect("there is room");
    ["vol-a", "vol-b", "vol-c"].iter().for_each(|name| volumes.leave_unfinished(&id(name)));
    assert!(volumes.get(&id("vol-a")).is_some(), "it is there, and was not put aside");
    let names = || volumes.deleted(&pool.config.name, |name, _| Some(name.to_owned()));
    assert_eq!(names(), [".making.vol-b"]);
    volumes.rename_deleted(&pool, ".making.vol-b", &aside(".deleted.1.making.vol-b"));
    assert_eq!(names(), [".deleted.1.making.vol-b"]);
    check_sums(&volumes);
}

#[test]
fn what_is_promised_anew_takes_the_place_of_what_was() {
    let (volumes, pool) = (empty(), pool("fast"));
    volumes.add(id("vol-a"), volume(&pool));
    let share = Share { bytes: 1000, preallocated: false, project: None };
    volumes.begin(&id("vol-b"), &pool, share, |_| Ok(())).expect("there is room");
    let promise = |bytes, check: &dyn Fn(u64) -> Result<(), Error>| volumes.promise(&id("vol-b"), bytes, check);
    let others = |promised| {
        assert_eq!(promised, 4096, "its own share is not counted twice");
        Ok(())
    };
    promise(1200, &others).expect("there is room");
    assert_eq!(volumes.promised(&pool), 5296);
    assert!(promise(9000, &refuse).is_err());
    assert_eq!(volumes.promised(&pool), 5296);
    check_sums(&volumes);
}

#[test]
fn a_project_belongs_to_one_volume() {
    let (volumes, pool) = (empty(), pool("fast"));
    for name in ["vol-a", "vol-b"] {
        volumes.begin(&id(name), &pool, Share::default(), |_| Ok(())).expect("there is room");
    }
    assert!(volumes.claim(&id("vol-a"), ProjectId(7)));
    assert!(!volumes.claim(&id("vol-b"), ProjectId(7)));
    assert!(volumes.claim(&id("vol-b"), ProjectId(8)));
    volumes.give_up(&id("vol-a"));
    assert!(volumes.claim(&id("vol-b"), ProjectId(7)), "a candidate takes the place of the one before");
    assert!(!volumes.has_project(&pool, ProjectId(8)));
    check_sums(&volumes);
}

#[test]
fn remains_have_a_project_unless_a_volume_has_it() {
    let (volumes, pool) = (empty(), pool("fast"));
    volumes.add(id("vol-a"), Volume { project: Some(ProjectId(7)), ..volume(&pool) });
    let emptied = Emptied::by_quota(&ProjectQuota::default()).expect("nothing is charged");
    for project in [7, 8, 8] {
        volumes.add_remains(&pool, ProjectId(project), emptied);
    }
    let remains = volumes.deleted(&pool.config.name, |_, deleted| Some((deleted.share, deleted.progress)));
    let [(share, Progress::Emptied(..))] = remains[..] else { panic!("one to be released: {remains:?}") };
    assert_eq!(share, Share { project: Some(ProjectId(8)), ..Share::default() });
    assert_eq!(volumes.projects(&pool), [ProjectId(7), ProjectId(8)].into());
    check_sums(&volumes);
}

#[test]
fn a_growth_is_promised_while_it_goes_on() {
    let (volumes, pool) = (empty(), pool("fast"));
    volumes.add(id("vol-a"), volume(&pool));
    assert!(volumes.change(&id("vol-a"), refuse, |_| panic!("it is refused")).is_err());
    change(&volumes, "vol-a", |volume| volume.growth = Some(8192));
    assert_eq!(volumes.promised(&pool), 12288);
    change(&volumes, "vol-a", |volume| volume.growth = None);
    assert_eq!(volumes.promised(&pool), 4096);
    assert!(volumes.change(&id("vol-b"), |_| Ok(()), |_| panic!("it does not exist")).expect("nothing").is_none());
    check_sums(&volumes);
}

#[test]
fn what_is_set_aside_is_promised_to_nobody() {
    let (mut found, pool) = (FoundVolumes::default(), pool("fast"));
    found.set_aside(&pool, Share { bytes: 1000, preallocated: true, project: Some(ProjectId(7)) });
    let volumes = found.all_known();
    assert_eq!((volumes.promised(&pool), volumes.number_on(&pool), volumes.number()), (1000, 1, 0));
    volumes
        .begin(&id("vol-a"), &pool, Share::default(), |promised| {
            assert_eq!(promised, 1000);
            Ok(())
        })
        .expect("there is room");
    assert!(!volumes.claim(&id("vol-a"), ProjectId(7)), "another has it");
    volumes.give_up(&id("vol-a"));
    assert_eq!(volumes.promised(&pool), 1000);
}

#[test]
fn the_images_without_a_project_are_known() {
    let volumes = table(&["vol-a", "vol-b"]);
    change(&volumes, "vol-b", |volume| volume.project = Some(ProjectId(7)));
    let uncounted: Vec<_> = volumes.uncounted_images((0, 0)).into_iter().map(|(id, ..)| id).collect();
    assert_eq!(uncounted, [id("vol-a")]);
}

#[test]
fn the_volumes_of_a_kind_are_those_of_one_pool() {
    let volumes = table(&["vol-a", "vol-b", "vol-c"]);
    change(&volumes, "vol-a", |volume| volume.allocated = 4096);
    let of = |kind, name| volumes.of_kind(kind, &pool(name));
    assert_eq!((of(Kind::Block, "even"), of(Kind::Block, "odd")), (vec![4096, 0], vec![0]));
    assert_eq!(of(Kind::Snapshot, "even"), []);
}

#[test]
fn a_target_is_published_once_and_counted() {
    let volumes = table(&["vol-a"]);
    change(&volumes, "vol-a", |volume| volume.publish(published("a")));
    change(&volumes, "vol-a", |volume| volume.publish(published("b")));
    let flags = MountFlags { read_only: true, ..MountFlags::default() };
    change(&volumes, "vol-a", |volume| volume.publish(Published { flags, ..published("a") }));
    let now = volumes.get(&id("vol-a")).expect("it exists");
    assert_eq!((now.published.len(), volumes.number_of_targets()), (2, 2));
    assert_eq!(now.published_at(&target("a")).map(|published| published.flags), Some(flags));
    assert_eq!(now.published_at(&target("c")), None);
    assert_eq!([target("b"), target("c")].map(|target| volumes.holder(&target)), [Some(id("vol-a")), None]);
    change(&volumes, "vol-a", |volume| volume.unpublish(&target("a")));
    assert_eq!(volumes.number_of_targets(), 1);
    assert_eq!(["a", "b"].map(|path| volumes.holder(&target(path))), [None, Some(id("vol-a"))]);
    check_sums(&volumes);
}

#[test]
fn deleted_volumes_are_those_of_one_pool() {
    let mut found = FoundVolumes::default();
    for (pool_name, name) in [("a", ".deleted.1.x"), ("b", ".deleted.2.x"), ("b", ".deleted.1.x"), ("c", "x")] {
        let call = CallId::default();
        let deleted = Deleted { pool: pool(pool_name), share: Share::default(), progress: Progress::default(), call };
        found.add_deleted(name, deleted);
    }
    let volumes = found.all_known();
    volumes.add(id("vol-a"), volume(&pool("b")));
    let names = |pool: &str| volumes.deleted(&pool.parse().expect("a name"), |name, _| Some(name.to_owned()));
    assert_eq!(names("b"), [".deleted.1.x", ".deleted.2.x"]);
    assert_eq!(names("c"), ["x"]);
    assert!(names("d").is_empty());
}

#[test]
fn a_volume_that_is_refused_while_they_are_found_stays_promised() {
    let (mut found, pool) = (FoundVolumes::default(), pool("fast"));
    for (name, project) in [("vol-a", 7), ("vol-b", 8)] {
        assert!(found.add(id(name), Volume { project: Some(ProjectId(project)), ..volume(&pool) }));
    }
    assert!(!found.add(id("vol-a"), volume(&pool)), "an id is taken once");
    found.change(&id("vol-b"), |volume| volume.seen_elsewhere = true);
    found.change(&id("vol-c"), |_| panic!("it does not exist"));
    ["vol-a", "vol-c"].iter().for_each(|name| found.refuse(&id(name)));
    assert!(found.get(&id("vol-a")).is_none() && found.get(&id("vol-b")).is_some_and(|volume| volume.seen_elsewhere));
    let volumes = found.all_known();
    assert_eq!((volumes.promised(&pool), volumes.number_on(&pool), volumes.number()), (2 * 4096, 2, 1));
    assert!(volumes.has_project(&pool, ProjectId(7)), "another would share it");
}
