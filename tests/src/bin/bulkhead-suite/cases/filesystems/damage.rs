//! Images that are not what they were: each fails alone, and nothing is repaired.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::run;
use bulkhead_tests::stand::Stand;

use super::{SIZE, check_detached, check_image, end, image, start, usage};

cases! {
    a_rotten_image_is_not_mounted_and_harms_no_other: Bare + Kernel,
    a_filesystem_that_has_shut_down_is_unpublished_and_mounted_anew: Bare + Kernel,
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

fn a_rotten_image_is_not_mounted_and_harms_no_other(stand: &mut Stand) -> Result<()> {
    start(stand, 3)?;
    let helper = stand.helper()?;
    helper.ask(&create("vol-b", filesystem_spec(SIZE)))?;
    helper.ask(&mount_filesystem("vol-b"))?;
    helper.ask(&bind("vol-b", "b"))?;
    for (what, damage) in DAMAGES {
        let damaged = || -> Result<()> {
            helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
            damage(&File::options().read(true).write(true).open(image(stand, "vol-a"))?)?;
            let before = fs::metadata(image(stand, "vol-a"))?.len();
            for _ in 0..2 {
                let refused = helper.request(&mount_filesystem("vol-a"))?;
                ensure!(matches!(&refused, Err(error) if matches!(error.kind, ErrorKind::Io(_))), "{refused:?}");
                let found = usage(&helper, "vol-a", None)?.condition;
                let is_said = matches!(found, Some(Condition::NotMountable { .. } | Condition::ImageSize { .. }));
                ensure!(is_said, "{found:?}");
            }
            ensure!(fs::metadata(image(stand, "vol-a"))?.len() == before, "the image was changed");
            denied(helper.request(&bind("vol-a", "a"))?, ErrorKind::Invalid, "not mounted")?;
            fs::write(stand.target("b/file"), what)?;
            helper.ask(&delete("vol-a"))?;
            bulkhead_tests::wait::until(stand.patience(std::time::Duration::from_secs(15)), || {
                ensure!(stand.pool().entries()? == ["vol-b"], "it is being emptied");
                Ok(())
            })
        };
        damaged().context(what)?;
    }
    // One whose sectors are smaller than the device's is not mounted either. Another filesystem of the same size is one.
    helper.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-s", "size=512"]).arg(image(stand, "vol-a")))?;
    let refused = helper.request(&mount_filesystem("vol-a"))?;
    ensure!(matches!(&refused, Err(error) if matches!(error.kind, ErrorKind::Io(_))), "{refused:?}");
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-s", "size=4096"]).arg(image(stand, "vol-a")))?;
    helper.ask(&mount_filesystem("vol-a"))?;
    helper.ask(&bind("vol-a", "a"))?;
    ensure!(fs::read_dir(stand.target("a"))?.count() == 0);
    for id in ["a", "b"] {
        helper.ask(&unbind(&format!("vol-{id}"), id))?;
        helper.ask(&unmount_filesystem(&format!("vol-{id}")))?;
        check_image(stand, &format!("vol-{id}"))?;
        helper.ask(&delete(&format!("vol-{id}")))?;
    }
    check_detached(stand)
}

fn a_filesystem_that_has_shut_down_is_unpublished_and_mounted_anew(stand: &mut Stand) -> Result<()> {
    start(stand, 3)?;
    let mut helper = stand.helper()?;
    for id in ["vol-a", "vol-b"] {
        helper.ask(&create(id, filesystem_spec(SIZE)))?;
        helper.ask(&mount_filesystem(id))?;
        helper.ask(&bind(id, id))?;
    }
    for restarts in [false, true] {
        let file = File::create(stand.target("vol-a/file"))?;
        file.sync_all()?;
        drop(file);
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(stand.target("vol-a")))?;
        if restarts {
            drop(helper);
            stand.restart_helper()?;
            helper = stand.helper()?;
        }
        let condition = |target| Ok::<_, anyhow::Error>(usage(&helper, "vol-a", target)?.condition);
        // A helper that is started anew cannot reach it.
        let wanted = if restarts { Condition::NotMountable { errno: 5 } } else { Condition::FilesystemShutDown };
        ensure!(condition(None)? == Some(wanted), "{:?}", condition(None)?);
        if !restarts {
            let at = Some(target("work", "vol-a"));
            ensure!(condition(at.clone())? == Some(Condition::FilesystemShutDown), "{:?}", condition(at)?);
            let refused = helper.request(&mount_filesystem("vol-a"))?;
            ensure!(matches!(&refused, Err(error) if error.kind == ErrorKind::Io(5)), "{refused:?}");
            let grown = helper.request(&grow_filesystem("vol-a", 2 * SIZE))?;
            ensure!(grown.is_err() && fs::metadata(image(stand, "vol-a"))?.len() == SIZE, "{grown:?}");
        }
        denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "vol-a")?;
        // All others go on.
        fs::write(stand.target("vol-b/file"), "content")?;
        for _ in 0..2 {
            helper.ask(&unbind("vol-a", "vol-a")).context("unpublish")?;
            helper.ask(&unmount_filesystem("vol-a")).context("unmount")?;
        }
        ensure!(mounts::below(&stand.publish_directory())?.len() == 1);
        helper.ask(&mount_filesystem("vol-a"))?;
        helper.ask(&bind("vol-a", "vol-a"))?;
        ensure!(stand.target("vol-a/file").exists());
    }
    end(stand, &helper, &["vol-a", "vol-b"])
}
