//! Deleting volumes with hostile content: pods have written it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::GetCapacityRequest;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, fallocate, linkat, mkdirat, mknodat, openat};

cases! {
    immutable_and_append_only_files_go: Filesystem,
    deep_trees_go: Filesystem,
    wide_trees_go,
    odd_names_go,
    special_files_go_and_open_nothing: Filesystem,
    links_out_of_the_volume_harm_nothing,
    trees_of_other_owners_go,
    a_writer_does_not_keep_a_volume_alive,
    a_name_is_free_as_soon_as_delete_is_answered,
    a_full_pool_of_directories_goes: Filesystem + OwnPool,
    a_deep_tree_in_a_full_pool_goes: OwnPool + Xfs,
    a_mount_taken_away_by_hand_keeps_no_volume_alive,
    room_comes_back: Quota,
    an_open_file_keeps_its_project_until_it_is_closed: Quota,
}

const SIZE: i64 = 64 * MIB;

/// Publishes a volume, lets `fill` write to it, deletes it, and waits until the pool is empty.
fn filled(rig: &mut Rig, fill: impl FnOnce(&Rig, &Path) -> Result<()>) -> Result<()> {
    deleted(rig, fill)?;
    wait_until_emptied(rig)?;
    rig.running_helper()?.check_alive()
}

/// Publishes a volume, lets `fill` write to it, and deletes it.
fn deleted(rig: &mut Rig, fill: impl FnOnce(&Rig, &Path) -> Result<()>) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    fill(rig, &target)?;
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    csi.delete_volume(delete("vol-a"))?;
    Ok(())
}

fn wait_until_emptied(rig: &Rig) -> Result<()> {
    wait_for_emptier(rig, Duration::from_secs(20))
}

/// The name of a volume that is being deleted starts with a dot.
fn wait_for_emptier(rig: &Rig, limit: Duration) -> Result<()> {
    wait::until(rig.patience(limit), || {
        let left = rig.pool().entries()?;
        ensure!(!left.iter().any(|name| name.starts_with('.')), "{left:?}");
        Ok(())
    })
}

/// Emptying must not need any space, neither in the volume's quota nor in the pool.
fn a_full_pool_of_directories_goes(rig: &mut Rig) -> Result<()> {
    let all =
        rig.csi()?.get_capacity(GetCapacityRequest::default())?.maximum_volume_size.context("a largest volume")?;
    let (csi, target) = rig.published(create("vol-a", all, mount()))?;
    for outer in 0..40 {
        for inner in 0..20 {
            fs::create_dir_all(target.join(format!("{outer}/{inner}/a-directory-with-a-longer-name")))?;
        }
    }
    // Deep inside, so that no space is freed before most directories are gone.
    let file = File::create(target.join("39/19/a-directory-with-a-longer-name/filler"))?;
    fill(&file);
    drop(file);
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    csi.delete_volume(delete("vol-a"))?;
    wait_until_emptied(rig)
}

/// Gives a file all the space there is.
fn fill(file: &File) {
    let (mut end, mut step) = (0, 1 << 30);
    while step >= 4096 {
        match fallocate(file, FallocateFlags::empty(), end, step) {
            Ok(()) => end += step,
            Err(_) => step /= 2,
        }
    }
}

/// Every directory is as full as it can be without a block of its own (XFS: 196 bytes in the inode), so that nothing
/// can be moved up, and the tree is so deep that the emptier does not reach the bottom in one pass.
fn a_deep_tree_in_a_full_pool_goes(rig: &mut Rig) -> Result<()> {
    let full = rig.pool().directory.join("full");
    let file = File::create(&full)?;
    deleted(rig, |_, top| {
        // What is too deep is moved up. These fill the volume's own directory before it is the deep one's turn.
        let wide = top.join("w/".repeat(31));
        for number in 0..24 {
            fs::create_dir_all(wide.join(format!("{number}/d")))?;
        }
        let deep = wide.join("deep");
        let name = "f".repeat(168);
        fs::create_dir_all(deep.join("d"))?;
        // A single file: unlinking one of its names frees no inode, and therefore no block. It comes after the
        // directory, so that the emptier descends before it unlinks anything.
        let linked = File::create(deep.join(&name))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = openat(CWD, &deep, flags, Mode::empty())?;
        for _ in 0..2000 {
            directory = openat(&directory, "d", flags, Mode::empty())?;
            mkdirat(&directory, "d", Mode::RWXU)?;
            linkat(&linked, "", &directory, &name, AtFlags::EMPTY_PATH)?;
        }
        fill(&file);
        let moved = fs::rename(deep.join("d/d/d"), deep.join("1"));
        ensure!(moved.is_err_and(|error| error.kind() == ErrorKind::StorageFull), "something can be moved up");
        Ok(())
    })?;
    // Almost every rename fails, which makes this slow.
    wait_for_emptier(rig, Duration::from_secs(180))?;
    fs::remove_file(full)?;
    Ok(())
}

fn a_mount_taken_away_by_hand_keeps_no_volume_alive(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let target = rig.target(id);
        csi.create_volume(create(id, SIZE, capability.clone()))?;
        csi.node_publish_volume(publish(id, &target, capability))?;
        run(Command::new("umount").arg(&target))?;
        csi.delete_volume(delete(id))?;
        if target.is_dir() {
            fs::remove_dir(&target)?;
        } else {
            fs::remove_file(&target)?;
        }
    }
    Ok(())
}

fn immutable_and_append_only_files_go(rig: &mut Rig) -> Result<()> {
    filled(rig, |_, top| {
        fs::create_dir_all(top.join("directory/inner"))?;
        fs::write(top.join("directory/file"), "content")?;
        fs::write(top.join("log"), "content")?;
        for (flag, path) in
            [("+i", "directory/file"), ("+a", "log"), ("+i", "directory/inner"), ("+i", "directory"), ("+a", ".")]
        {
            run(Command::new("chattr").arg(flag).arg(top.join(path)))?;
        }
        ensure!(fs::remove_file(top.join("log")).is_err(), "nothing is append-only");
        Ok(())
    })
}

/// Far deeper than a path can be long, and deeper than there are descriptors.
fn deep_trees_go(rig: &mut Rig) -> Result<()> {
    let levels = 3000;
    filled(rig, |_, top| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = openat(CWD, top, flags, Mode::empty())?;
        for _ in 0..levels {
            mkdirat(&directory, "d", Mode::RWXU)?;
            directory = openat(&directory, "d", flags, Mode::empty())?;
        }
        openat(&directory, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR)?;
        Ok(())
    })
}

fn wide_trees_go(rig: &mut Rig) -> Result<()> {
    filled(rig, |_, top| {
        for directory in 0..20 {
            let directory = top.join(directory.to_string());
            fs::create_dir(&directory)?;
            for file in 0..100 {
                File::create(directory.join(file.to_string()))?;
            }
        }
        // The emptier moves directories to names of its own choosing; these are in its way.
        for name in [".0", ".1", "0.0", "..0", ".moved.0", ".1.d"] {
            fs::create_dir_all(top.join(name).join(name).join(name))?;
        }
        Ok(())
    })
}

fn odd_names_go(rig: &mut Rig) -> Result<()> {
    filled(rig, |_, top| {
        let longest = "n".repeat(255);
        let odd: [&[u8]; 12] = [
            b"...",
            b".. ",
            b" ",
            b"\n",
            b"\x1b[2J",
            b"\xff\xfe",
            b"-rf",
            b"*",
            b"a\\b",
            b"image",
            b"data",
            longest.as_bytes(),
        ];
        for name in odd {
            fs::write(top.join(OsStr::from_bytes(name)), "content")?;
            let mut directory = name.to_vec();
            directory.truncate(254);
            directory.push(b'd');
            fs::create_dir_all(top.join(OsString::from_vec(directory)).join(OsStr::from_bytes(name)))?;
        }
        Ok(())
    })
}

fn special_files_go_and_open_nothing(rig: &mut Rig) -> Result<()> {
    filled(rig, |_, top| {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, top.join("fifo"), FileType::Fifo, mode, 0)?;
        mknodat(CWD, top.join("null"), FileType::CharacterDevice, mode, rustix::fs::makedev(1, 3))?;
        mknodat(CWD, top.join("disk"), FileType::BlockDevice, mode, rustix::fs::makedev(7, 4000))?;
        let socket = std::os::unix::net::UnixListener::bind(top.join("socket"))?;
        drop(socket);
        File::create(top.join("sparse"))?.set_len(1 << 40)?;
        Ok(())
    })?;
    // Opening the node would have created the device.
    ensure!(!Path::new("/sys/block/loop4000").exists());
    Ok(())
}

fn links_out_of_the_volume_harm_nothing(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-b", MIB, mount()))?;
    let neighbour = rig.pool().volume("vol-b").join("data/precious");
    fs::write(&neighbour, "content")?;
    let outside = rig.work().join("outside");
    fs::create_dir(&outside)?;
    fs::write(outside.join("precious"), "content")?;
    filled(rig, |_, top| {
        fs::create_dir_all(top.join("d/e"))?;
        for (number, link) in
            ["/", "..", "../..", "../../vol-b/data", "/proc/self/root", "self", "."].iter().enumerate()
        {
            symlink(link, top.join(format!("link-{number}")))?;
            symlink(link, top.join(format!("d/e/link-{number}")))?;
        }
        symlink(&outside, top.join("outside"))?;
        symlink("self", top.join("self"))?;
        fs::write(top.join("one"), "content")?;
        fs::hard_link(top.join("one"), top.join("d/two"))?;
        Ok(())
    })?;
    rig.pool().holds(&["vol-b"])?;
    ensure!(fs::read(&neighbour)? == b"content" && fs::read(outside.join("precious"))? == b"content");
    Ok(())
}

fn trees_of_other_owners_go(rig: &mut Rig) -> Result<()> {
    filled(rig, |_, top| {
        fs::create_dir_all(top.join("a/b/c"))?;
        fs::write(top.join("a/b/c/file"), "content")?;
        for path in ["a/b/c/file", "a/b/c", "a/b", "a", "."] {
            std::os::unix::fs::chown(top.join(path), Some(1000), Some(1000))?;
            fs::set_permissions(top.join(path), std::os::unix::fs::PermissionsExt::from_mode(0o000))?;
        }
        // A sticky directory full of other users' files.
        fs::create_dir(top.join("sticky"))?;
        fs::set_permissions(top.join("sticky"), std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
        fs::write(top.join("sticky/file"), "content")?;
        std::os::unix::fs::chown(top.join("sticky/file"), Some(2000), None)?;
        Ok(())
    })
}

fn a_writer_does_not_keep_a_volume_alive(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, mount()))?;
    fs::create_dir(target.join("busy"))?;
    // A process that reached the directory before it was unpublished keeps writing through its descriptor.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let pool = rig.pool().volume("vol-a").join("data/busy");
    let inside = openat(CWD, &pool, flags, Mode::empty())?;
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    csi.delete_volume(delete("vol-a"))?;
    for number in 0..500 {
        let name = CString::new(number.to_string())?;
        // Once the directory is removed, nothing can be created in it.
        if openat(&inside, name.as_c_str(), OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).is_err() {
            break;
        }
    }
    drop(inside);
    wait_until_emptied(rig)
}

fn a_name_is_free_as_soon_as_delete_is_answered(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for round in 0..10 {
        csi.create_volume(create("vol-a", MIB, mount()))?;
        let data = rig.pool().volume("vol-a").join("data");
        ensure!(fs::read_dir(&data)?.count() == 0, "round {round} finds something");
        for number in 0..50 {
            File::create(data.join(number.to_string()))?;
        }
        csi.delete_volume(delete("vol-a"))?;
        ensure!(!rig.pool().volume("vol-a").exists());
    }
    Ok(())
}

fn room_comes_back(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    // In total four times the size of the pool.
    for round in 0..8 {
        for capability in [mount(), block()] {
            // The filesystem itself frees blocks a moment after the last name is gone.
            rig.eventually(10, || {
                csi.create_volume(create("vol-a", 200 * MIB, capability.clone()))
                    .map(drop)
                    .with_context(|| format!("round {round}"))
            })?;
            csi.node_publish_volume(publish("vol-a", &target, capability.clone()))?;
            if capability == mount() && round < 2 {
                fs::write(target.join("file"), vec![1; 100 << 20])?;
            }
            csi.node_unpublish_volume(unpublish("vol-a", &target))?;
            csi.delete_volume(delete("vol-a"))?;
            wait_until_emptied(rig)?;
        }
    }
    Ok(())
}

fn an_open_file_keeps_its_project_until_it_is_closed(rig: &mut Rig) -> Result<()> {
    use bulkhead_tests::observe::quotas;
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    let path = rig.pool().volume("vol-a").join("data/file");
    fs::write(&path, vec![1; 8 << 20])?;
    let open = File::open(&path)?;
    open.sync_all()?;
    let project = quotas::blocks(&rig.pool().directory)?.first().context("no project")?.project;
    csi.delete_volume(delete("vol-a"))?;
    std::thread::sleep(rig.patience(Duration::from_millis(300)));
    ensure!(quotas::blocks(&rig.pool().directory)?.iter().any(|quota| quota.project == project));
    // The next volume gets a different project.
    csi.create_volume(create("vol-b", SIZE, mount()))?;
    fs::write(rig.pool().volume("vol-b").join("data/file"), vec![1; 1 << 20])?;
    File::open(rig.pool().volume("vol-b").join("data/file"))?.sync_all()?;
    let projects = quotas::blocks(&rig.pool().directory)?;
    ensure!(projects.len() == 2 && projects.iter().all(|quota| quota.used < 9000), "{projects:?}");
    drop(open);
    Ok(())
}
