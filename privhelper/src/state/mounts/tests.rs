use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use super::*;
use crate::state::testing::{id, volumes};
use crate::sys::Errno;
use crate::sys::mountinfo::changes::{MountChanges, testing::event};

const ROOT: &str = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n";

fn pools() -> [PoolAt; 1] {
    [((8, 3), "/pool".into())]
}

/// A host whose kernel tells of its mounts.
struct Host {
    table: File,
    kernel: UnixStream,
    mounts: Mounts,
    /// The id in the table of the mount that came last.
    last: u64,
}

impl Host {
    fn new() -> Self {
        let table = MountTable::of(ROOT);
        let file = table.file().try_clone().expect("a copy");
        let (told, kernel) = UnixStream::pair().expect("a pair");
        told.set_nonblocking(true).expect("it can be set");
        let table = table.told_by(MountChanges::of(told.into()));
        let mounts = Mounts::new(table, "nodes".to_owned(), &[], volumes(&["vol-a", "vol-b", "vol-c"]));
        let mut host = Self { table: file.into(), kernel, mounts, last: 1 };
        host.follow();
        assert_eq!(host.readings(), 1, "at first nothing is known");
        host
    }

    fn tell(&mut self, change: Change) {
        self.kernel.write_all(&event(change)).expect("there is room");
    }

    /// A part of a volume appears at the end of the table.
    fn show(&mut self, root: &str) {
        self.last += 1;
        let line = format!("{} 1 8:3 {root} /at{root} rw - xfs /dev/sdb rw\n", self.last);
        let end = self.table.metadata().expect("a file").len();
        self.table.write_all_at(line.as_bytes(), end).expect("there is room");
    }

    fn mount(&mut self, id: u64, root: &str) {
        self.show(root);
        self.tell(Change::Attached(id));
    }

    /// Makes the beginning of the table one that cannot be read any more.
    fn spoil(&mut self) {
        self.table.write_all_at(b"not a mount", 0).expect("there is room");
    }

    fn mend(&mut self) {
        self.table.write_all_at(ROOT.as_bytes(), 0).expect("there is room");
    }

    fn follow(&mut self) {
        self.mounts.follow(&pools()).expect("the table can be read");
    }

    fn readings(&self) -> u64 {
        self.mounts.begun.load(SeqCst)
    }

    fn shows(&self, volume: &str) -> bool {
        self.mounts.showing(&id(volume), None).is_some()
    }
}

#[test]
fn what_comes_and_goes_is_known_without_reading_more_than_the_end() {
    let mut host = Host::new();
    host.spoil();
    host.mount(11, "/pool/vol-a/data");
    host.mount(14, "/pool/vol-b/data/sub");
    host.mount(12, "/elsewhere");
    host.follow();
    // In the order of their ids, the second shows nothing of a volume.
    assert!(host.shows("vol-a") && host.shows("vol-b") && !host.shows("vol-c"));
    host.tell(Change::Detached(11));
    host.follow();
    assert!(!host.shows("vol-a") && host.shows("vol-b"));
    // One that has come and gone meanwhile is in no table.
    host.tell(Change::Attached(20));
    host.tell(Change::Detached(20));
    host.mount(21, "/pool/vol-a");
    host.follow();
    host.follow();
    assert!(host.shows("vol-a"));
    assert_eq!(host.readings(), 1);
}

/// What happens to a host.
type Happens<'a> = &'a dyn Fn(&mut Host);

#[test]
fn the_whole_table_is_read_if_what_is_told_does_not_fit_what_is_read() {
    let told = |change: Change| move |host: &mut Host| host.tell(change);
    let cases: [(&str, Happens); 5] = [
        ("an older mount, which may be anywhere in the table", &told(Change::Attached(10))),
        ("one that is not at the end", &told(Change::Attached(20))),
        ("a move, or too much to be told", &told(Change::Other)),
        ("more lines than were told of", &|host| {
            host.show("/pool/vol-b/data");
            host.mount(20, "/pool/vol-c/data");
        }),
        ("fewer", &|host| {
            host.tell(Change::Attached(20));
            host.mount(21, "/pool/vol-c/data");
        }),
    ];
    for (what, happens) in cases {
        let mut host = Host::new();
        host.mount(11, "/pool/vol-a/data");
        host.follow();
        assert_eq!(host.readings(), 1, "{what}");
        host.show("/pool/vol-d/data");
        host.tell(Change::Attached(12));
        happens(&mut host);
        host.follow();
        assert_eq!(host.readings(), 2, "{what}");
        assert!(host.shows("vol-a") && host.shows("vol-d"), "{what}");
        host.follow();
        assert_eq!(host.readings(), 2, "{what}: it is known now");
    }
}

#[test]
fn what_comes_while_the_whole_table_is_read_makes_it_read_again() {
    for (change, readings) in [(Change::Attached(500), 3), (Change::Other, 3), (Change::Detached(7), 2)] {
        let mut host = Host::new();
        let mut kernel = host.kernel.try_clone().expect("a copy");
        let tell = |_: &Mount| kernel.write_all(&event(change)).expect("there is room");
        host.mounts.read_whole(&pools(), tell).expect("it can be read");
        host.follow();
        assert_eq!(host.readings(), readings, "{change:?}");
        host.follow();
        assert_eq!(host.readings(), readings, "{change:?}: it is known now");
    }
}

#[test]
fn after_a_failure_nothing_is_believed() {
    let mut host = Host::new();
    host.spoil();
    host.tell(Change::Other);
    let begun = host.readings();
    assert!(host.mounts.follow(&pools()).is_err_and(|error| error.errno == Errno::BADMSG));
    assert!(!host.mounts.was_read_since(begun, &pools()), "who has waited for it reads it again");
    assert!(host.mounts.follow(&pools()).is_err());
    host.mend();
    host.mount(11, "/pool/vol-a/data");
    host.follow();
    assert!(host.shows("vol-a"));
}

#[test]
fn a_mount_that_is_there_twice_is_known_once() {
    let mut host = Host::new();
    host.mount(11, "/pool/vol-a/data");
    host.last -= 1;
    host.mount(12, "/pool/vol-a/data");
    host.follow();
    assert_eq!(host.readings(), 2);
    host.follow();
    assert_eq!((host.readings(), host.mounts.contents(&id("vol-a")).count()), (2, 1));
}

#[test]
fn where_the_pools_are_is_part_of_what_is_known() {
    let mut host = Host::new();
    host.mount(11, "/elsewhere/vol-a/data");
    host.follow();
    let (begun, moved) = (host.readings(), [((8, 3), "/elsewhere".into())]);
    assert!(!host.shows("vol-a"));
    host.mounts.follow(&moved).expect("the table can be read");
    assert!(host.shows("vol-a") && host.mounts.was_read_since(begun, &moved));
    assert!(!host.mounts.was_read_since(begun, &pools()));
}

#[test]
fn what_is_beside_the_volumes_of_a_pool_may_have_moved_to_where_one_is() {
    for (root, may_have_moved) in [
        ("/aside/data", true),
        ("/pool/.deleted.1.vol-a/data", true),
        ("/pool2", true),
        // It is called so while nobody knows a volume of that name.
        ("/pool/aside/data", true),
        ("/pool/vol-a/data", false),
        ("/pool", false),
        ("/", false),
    ] {
        let mut host = Host::new();
        host.mount(11, root);
        host.follow();
        assert_eq!(host.mounts.may_have_moved(), may_have_moved, "{root}");
    }
}

#[test]
fn a_kernel_that_tells_nothing_is_asked_for_the_whole_table_each_time() {
    let mut mounts = Mounts::new(MountTable::of(ROOT), "nodes".to_owned(), &[], volumes(&[]));
    for readings in 1..4 {
        mounts.follow(&[]).expect("it can be read");
        assert_eq!(mounts.begun.load(SeqCst), readings);
    }
}

#[test]
fn every_part_of_a_volume_names_it_and_nothing_else_does() {
    let volume = |pool: &str, root: &str| {
        let mount = Mount { device: (8, 1), root: root.into(), ..Mount::default() };
        volume_in((8, 1), Path::new(pool), &mount).map(|id| id.as_str().to_owned())
    };
    for part in ["", "/data", "/data/sub/deep", "/data//deleted", "/renamed", "//deleted"] {
        assert_eq!(volume("/srv/pool/", &format!("/srv/pool/vol-a{part}")), Some("vol-a".to_owned()), "{part}");
    }
    for other in ["/", "/srv", "/srv/pool", "/srv/pool/", "/srv/pool2/vol-a", "/srv/pool/.deleted.1.vol-a/data"] {
        assert_eq!(volume("/srv/pool/", other), None, "{other}");
    }
    let elsewhere = Mount { device: (8, 2), root: "/srv/pool/vol-a".into(), ..Mount::default() };
    assert_eq!(volume_in((8, 1), Path::new("/srv/pool"), &elsewhere), None);
    assert_eq!(volume("/", "/vol-a/data"), Some("vol-a".to_owned()));
}

#[test]
fn the_content_of_a_volume_is_known_in_any_pool_and_no_part_of_it_is_taken_for_it() {
    let table =
        |root: &str| format!("7 1 8:9 {root} /t rw - xfs /dev/sdc rw\n7 1 8:3 {root} /t rw - xfs /dev/sdb rw\n");
    for (root, number) in [
        ("/pool/vol-a/data", 2),
        ("/vol-a/data", 2),
        ("/pool/vol-a/data/sub", 0),
        ("/pool/vol-a", 0),
        ("/pool/vol-a/data//deleted", 0),
        ("/data", 0),
    ] {
        let mut mounts = Mounts::new(MountTable::of(&table(root)), "nodes".to_owned(), &[], volumes(&[]));
        mounts.follow(&pools()).expect("it can be read");
        assert_eq!(mounts.contents(&id("vol-a")).count(), number, "{root}");
        // In another filesystem it is another volume, or a copy.
        assert_eq!(mounts.showing(&id("vol-a"), None).is_some(), root.starts_with("/pool/vol-a"), "{root}");
    }
}
