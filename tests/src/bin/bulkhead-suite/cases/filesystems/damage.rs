//! Images that are not what they were: each fails alone, and nothing is repaired.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;

use super::{SIZE, check_detached, check_image, end, make_pool_of, start};

cases! {
    a_rotten_image_is_not_mounted_and_harms_no_other: Bare,
    a_filesystem_that_has_shut_down_is_unpublished_and_mounted_anew: Bare,
    what_rots_while_it_is_mounted_harms_no_other: Bare + Slow,
    a_sparse_one_in_a_full_pool_fails_alone_and_heals: Bare,
}

/// What becomes of an image, and how.
type Damage = (&'static str, fn(&File) -> Result<()>);

const DAMAGES: [Damage; 4] = [
    ("bits of the superblock are flipped", |image| {
        let mut block = [0; 64];
        image.read_exact_at(&mut block, 0)?;
        block[40] ^= 1;
        Ok(image.write_all_at(&block, 0)?)
    }),
    ("it is truncated", |image| Ok(image.set_len(SIZE / 2)?)),
    ("it is all zeros", |image| {
        image.set_len(0)?;
        Ok(image.set_len(SIZE)?)
    }),
    ("it is noise", |image| {
        let noise: Vec<u8> = (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        Ok(image.write_all_at(&noise, 0)?)
    }),
];

fn a_rotten_image_is_not_mounted_and_harms_no_other(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([create("vol-b", filesystem_spec(SIZE)), mount_filesystem("vol-b"), bind("vol-b", "b")])?;
    for (what, damage) in DAMAGES {
        let damaged = || -> Result<()> {
            helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
            damage(&File::options().read(true).write(true).open(rig.pool().image("vol-a"))?)?;
            let before = fs::metadata(rig.pool().image("vol-a"))?.len();
            for (request, is_labelled) in [
                (mount_filesystem("vol-a"), false),
                (mount_filesystem("vol-a"), false),
                (mount_labelled("vol-a", "s0"), true),
            ] {
                let refused = helper.request(&request)?;
                let is_expected =
                    |kind| matches!(kind, ErrorKind::Io(_)) || is_labelled && kind == ErrorKind::Unsupported;
                ensure!(matches!(&refused, Err(error) if is_expected(error.kind)), "{refused:?}");
                // Also a label that is refused makes nothing of it well.
                let found = helper.usage("vol-a", None)?.condition;
                let is_said = matches!(found, Some(Condition::NotMountable { .. } | Condition::ImageSize { .. }));
                ensure!(is_said, "{found:?}");
            }
            ensure!(fs::metadata(rig.pool().image("vol-a"))?.len() == before, "the image was changed");
            denied(helper.request(&bind("vol-a", "a"))?, ErrorKind::Invalid, "not mounted")?;
            fs::write(rig.target("b/file"), what)?;
            helper.ask(&delete("vol-a"))?;
            rig.eventually(15, || rig.pool().holds(&["vol-b"]))
        };
        damaged().context(what)?;
    }
    // One whose sectors are smaller than the device's is not mounted either. Another filesystem of the same size is one.
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-s", "size=512"]).arg(rig.pool().image("vol-a")))?;
    let refused = helper.request(&mount_filesystem("vol-a"))?;
    ensure!(matches!(&refused, Err(error) if matches!(error.kind, ErrorKind::Io(_))), "{refused:?}");
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-s", "size=4096"]).arg(rig.pool().image("vol-a")))?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "a")])?;
    ensure!(fs::read_dir(rig.target("a"))?.count() == 0);
    for id in ["a", "b"] {
        helper.ask_all([unbind(&format!("vol-{id}"), id), unmount_filesystem(&format!("vol-{id}"))])?;
        check_image(rig, &format!("vol-{id}"))?;
        helper.ask(&delete(&format!("vol-{id}")))?;
    }
    check_detached(rig)
}

fn a_filesystem_that_has_shut_down_is_unpublished_and_mounted_anew(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let mut helper = rig.helper()?;
    for id in ["vol-a", "vol-b"] {
        helper.ask_all([create(id, filesystem_spec(SIZE)), mount_filesystem(id), bind(id, id)])?;
    }
    for restarts in [false, true] {
        let file = File::create(rig.target("vol-a/file"))?;
        file.sync_all()?;
        drop(file);
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(rig.target("vol-a")))?;
        if restarts {
            drop(helper);
            rig.restart_helper()?;
            helper = rig.helper()?;
        }
        let condition = |target| Ok::<_, anyhow::Error>(helper.usage("vol-a", target)?.condition);
        // A helper that is started anew cannot reach it.
        let wanted = if restarts { Condition::NotMountable { errno: 5 } } else { Condition::FilesystemShutDown };
        ensure!(condition(None)? == Some(wanted), "{:?}", condition(None)?);
        if !restarts {
            let at = Some(target("work", "vol-a"));
            ensure!(condition(at.clone())? == Some(Condition::FilesystemShutDown), "{:?}", condition(at)?);
            let refused = helper.request(&mount_filesystem("vol-a"))?;
            ensure!(matches!(&refused, Err(error) if error.kind == ErrorKind::Io(5)), "{refused:?}");
            let grown = helper.request(&grow_filesystem("vol-a", 2 * SIZE))?;
            ensure!(grown.is_err() && fs::metadata(rig.pool().image("vol-a"))?.len() == SIZE, "{grown:?}");
        }
        denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "vol-a")?;
        // All others go on.
        fs::write(rig.target("vol-b/file"), "content")?;
        for _ in 0..2 {
            helper.ask(&unbind("vol-a", "vol-a")).context("unpublish")?;
            helper.ask(&unmount_filesystem("vol-a")).context("unmount")?;
        }
        ensure!(mounts::below(&rig.publish_directory())?.len() == 1);
        helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
        ensure!(rig.target("vol-a/file").exists());
    }
    end(rig, &helper, &["vol-a", "vol-b"])
}

/// Fills a filesystem with directories and files, which a walk has to read.
fn fill(top: &Path) -> Result<()> {
    for number in 0..200 {
        let directory = top.join(format!("directory{}/deeper{number}", number % 10));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("file"), vec![number as u8; 20 << 10])?;
    }
    Ok(())
}

/// Reads what is there, and returns how many files are what they were.
fn whole(top: &Path) -> usize {
    let path = |number| top.join(format!("directory{}/deeper{number}/file", number % 10));
    (0..200).filter(|number| fs::read(path(*number)).is_ok_and(|found| found == vec![*number as u8; 20 << 10])).count()
}

/// The blocks that hold metadata begin with these words (`xfs_da_blkinfo`, `xfs_dsb`, the btrees of an allocation group).
const METADATA: [&[u8]; 8] = [b"IN", b"XD2D", b"XDD3", b"XDB3", b"XAGF", b"XAGI", b"IAB3", b"FIB3"];

/// Flips bits in all metadata of an image but the superblocks. Returns in how many blocks.
fn flip(image: &File) -> Result<usize> {
    let (mut block, mut flipped) = ([0; 4096], 0);
    for at in (0..image.metadata()?.len()).step_by(block.len()) {
        image.read_exact_at(&mut block, at)?;
        if METADATA.iter().any(|word| block.starts_with(word)) {
            block[100] ^= 0x40;
            image.write_all_at(&block, at)?;
            flipped += 1;
        }
    }
    image.sync_all()?;
    Ok(flipped)
}

/// What happens to the image of a filesystem that is mounted.
const DAMAGES_IN_USE: [Damage; 3] = [
    ("bits are flipped", |image| {
        ensure!(flip(image)? > 20, "there is hardly any metadata");
        Ok(())
    }),
    ("it is truncated", |image| Ok(image.set_len(64 << 10)?)),
    ("all but the superblock becomes zeros", |image| {
        image.set_len(4096)?;
        Ok(image.set_len(SIZE)?)
    }),
];

fn what_rots_while_it_is_mounted_harms_no_other(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([create("vol-b", filesystem_spec(SIZE)), mount_filesystem("vol-b"), bind("vol-b", "vol-b")])?;
    for (what, damage) in DAMAGES_IN_USE {
        let damaged = || -> Result<()> {
            helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
            let publish = || helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "vol-a")]);
            publish()?;
            fill(&rig.target("vol-a"))?;
            // Mounted anew: what was in memory is read again.
            helper.ask_all([unbind("vol-a", "vol-a"), unmount_filesystem("vol-a")])?;
            publish()?;
            damage(&File::options().read(true).write(true).open(rig.pool().image("vol-a"))?)?;
            let left = whole(&rig.target("vol-a"));
            ensure!(left < 200, "everything is there");
            let _ = fs::write(rig.target("vol-a/new"), "content");
            run(Command::new("sync").arg("-f").arg(rig.target("vol-a"))).unwrap_or_default();
            // A filesystem that does not come to write what it cannot read goes on. The length is always told.
            let found = helper.usage("vol-a", None)?.condition;
            let is_told = matches!(found, Some(Condition::ImageSize { .. }));
            ensure!(is_told == (what == "it is truncated"), "{found:?}");
            fs::write(rig.target("vol-b/file"), what)?;
            ensure!(helper.usage("vol-b", None)?.condition.is_none());
            helper.ask(&unbind("vol-a", "vol-a"))?;
            helper.ask_patiently(&unmount_filesystem("vol-a"))?;
            // Mounted anew it fails, or shows what is left.
            if helper.request(&mount_filesystem("vol-a"))?.is_err() {
                let found = helper.usage("vol-a", None)?.condition;
                let is_told = matches!(found, Some(Condition::NotMountable { .. } | Condition::ImageSize { .. }));
                ensure!(is_told, "{found:?}");
            }
            helper.ask_patiently(&delete("vol-a")).map(drop)
        };
        damaged().context(what)?;
    }
    end(rig, &helper, &["vol-b"])
}

/// Below a sparse image there may be no block left.
fn a_sparse_one_in_a_full_pool_fails_alone_and_heals(rig: &mut Rig) -> Result<()> {
    make_pool_of(rig, 1024, 2)?;
    let helper = rig.started_helper()?;
    for (id, spec) in [("vol-a", filesystem_spec(SIZE)), ("vol-b", preallocated_filesystem_spec(SIZE))] {
        helper.ask_all([create(id, spec), mount_filesystem(id), bind(id, id)])?;
        fs::write(rig.target(id).join("kept"), "content")?;
        run(Command::new("sync").arg("-f").arg(rig.target(id)))?;
    }
    let filler = rig.pool().directory.join("filler");
    let mut file = File::create(&filler)?;
    while file.write_all(&[7; 1 << 20]).and_then(|()| file.sync_data()).is_ok() {}
    for length in [64 << 10, 4096, 1] {
        while file.write_all(&vec![7; length]).and_then(|()| file.sync_data()).is_ok() {}
    }
    drop(file);
    let write = |id: &str, name: &str| -> std::io::Result<()> {
        let mut file = File::create(rig.target(id).join(name))?;
        for _ in 0..32 {
            file.write_all(&[7; 1 << 20])?;
        }
        file.sync_all()
    };
    ensure!((0..4).any(|number| write("vol-a", &format!("file{number}")).is_err()), "there is room");
    write("vol-b", "file").context("a preallocated one in a full pool")?;
    let found = helper.usage("vol-a", None)?.condition;
    println!("in a full pool: {found:?}");
    // Whatever it has become, it can be let go, and no other is touched by that.
    fs::remove_file(&filler)?;
    run(Command::new("sync").arg("-f").arg(&rig.pool().directory))?;
    helper.ask(&unbind("vol-a", "vol-a"))?;
    helper.ask_patiently(&unmount_filesystem("vol-a"))?;
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
    ensure!(fs::read(rig.target("vol-a/kept"))? == b"content", "what was synced is gone");
    write("vol-a", "later").context("with room again")?;
    ensure!(helper.usage("vol-a", None)?.condition.is_none());
    end(rig, &helper, &["vol-a", "vol-b"])
}
