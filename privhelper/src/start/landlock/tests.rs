//! What a thread that is confined like an emptier may still do. Only the thread is confined: each test has its own.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use super::*;
use crate::sys::{Errno, file, walk};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

#[test]
fn each_version_adds_rights_to_those_before() {
    let rights = |version| {
        let Handled { handled_access_fs, handled_access_net, scoped } = all(Process::Emptier, version);
        (handled_access_fs, handled_access_net, scoped)
    };
    assert_eq!(rights(2), (0x3fff, 0, 0));
    assert_eq!(rights(3), (0x7fff, 0, 0));
    assert_eq!(rights(4), (0x7fff, 3, 0));
    assert_eq!(rights(5), (0xffff, 3, 0));
    for version in [6, 7, 9] {
        assert_eq!(rights(version), (0xffff, 3, 3));
        assert_eq!(all(Process::Keeper, version).scoped, 1, "its children end with it");
    }
    assert_eq!(u64::from(TO_EMPTY) & !rights(2).0, 0, "the oldest version knows what is allowed");
}

/// Calls `attempt` with a pool and a directory beside it, in a thread that is confined to the pool.
fn confined(name: &str, attempt: impl FnOnce(&OwnedFd, &OwnedFd) + Send) {
    let path = std::env::temp_dir().join(format!("bulkhead-landlock-{}-{name}", std::process::id()));
    let both = walk::open_at_start(&std::env::temp_dir(), OFlags::PATH | OFlags::DIRECTORY).expect("a directory");
    let root =
        walk::make_directories(both.as_fd(), path.file_name().expect("a name").to_str().expect("UTF-8"), Mode::RWXU);
    let root = root.expect("a directory for the test");
    for directory in ["pool", "pool/volume", "pool/volume/deep", "beside"] {
        file::make_directory(&root, directory, Mode::RWXU).expect(directory);
    }
    let pool = file::open(&root, "pool", DIRECTORY).expect("the pool");
    let beside = file::open(&root, "beside", DIRECTORY).expect("the directory beside it");
    for directory in [&pool, &beside] {
        drop(file::create(directory, "file", Mode::RUSR | Mode::WUSR).expect("a file"));
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).expect("no_new_privs");
            restrict(Process::Emptier, &[(&pool, TO_EMPTY)], landlock::version().expect("a kernel with Landlock"))
                .expect("confined");
            attempt(&pool, &beside);
        });
        thread.join().expect("the thread ends well");
    });
    for (entry, flags) in [
        ("beside/file", AtFlags::empty()),
        ("beside", AtFlags::REMOVEDIR),
        ("pool/file", AtFlags::empty()),
        ("pool/1", AtFlags::REMOVEDIR),
        ("pool/volume/deep", AtFlags::REMOVEDIR),
        ("pool/volume", AtFlags::REMOVEDIR),
        ("pool", AtFlags::REMOVEDIR),
    ] {
        match rustix::fs::unlinkat(&root, entry, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => panic!("{entry} stays: {error}"),
        }
    }
    rustix::fs::unlinkat(CWD, &path, AtFlags::REMOVEDIR).expect("the directory of the test is empty");
}

#[test]
fn what_emptying_needs_is_left() {
    confined("needs", |pool, _| {
        file::open(pool, "file", OFlags::RDONLY).expect("a file is opened to take its flags off");
        let volume = file::open(pool, "volume", DIRECTORY).expect("a directory is opened");
        walk::each_entry(&volume, |_| Ok(())).expect("and read");
        walk::rename_new(&volume, "deep", pool, "1").expect("what is deep is moved to the top");
        file::remove_directory(pool, "1").expect("a directory is removed");
        file::remove(pool, "file").expect("a file is removed");
    });
}

#[test]
fn nothing_is_written_made_or_renamed_and_nothing_outside_is_reached() {
    confined("hostile", |pool, beside| {
        let mode = Mode::RWXU;
        for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC] {
            assert_eq!(
                file::open(pool, "file", flags).err().map(|error| error.errno),
                Some(Errno::ACCESS),
                "{flags:?}"
            );
        }
        assert_eq!(file::create(pool, "new", mode).err().map(|error| error.errno), Some(Errno::ACCESS));
        assert_eq!(rustix::fs::symlinkat("/", pool, "new").err(), Some(Errno::ACCESS));
        for node in [FileType::Fifo, FileType::Socket] {
            assert_eq!(rustix::fs::mknodat(pool, "new", node, mode, 0).err(), Some(Errno::ACCESS), "{node:?}");
        }
        assert_eq!(
            walk::rename_new(pool, "file", pool, "new").err().map(|error| error.errno),
            Some(Errno::ACCESS),
            "only directories are moved"
        );
        for (from, to) in [(pool, beside), (beside, pool)] {
            assert!(walk::rename_new(from, "file", to, "new").is_err());
            assert!(rustix::fs::linkat(from, "file", to, "new", AtFlags::empty()).is_err());
        }
        assert_eq!(file::open(beside, "file", OFlags::RDONLY).err().map(|error| error.errno), Some(Errno::ACCESS));
        assert_eq!(file::open(beside, ".", DIRECTORY).err().map(|error| error.errno), Some(Errno::ACCESS));
        assert_eq!(file::remove(beside, "file").err().map(|error| error.errno), Some(Errno::ACCESS));
    });
}
