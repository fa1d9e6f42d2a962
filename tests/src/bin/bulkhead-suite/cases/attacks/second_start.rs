//! A second helper is started while the first one is serving.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Request};
use bulkhead_tests::cases;
use bulkhead_tests::commands::refusal;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{
    HelperClient, attach, bind, create, delete, directory_spec, image_spec, target, unbind, volume,
};
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use rustix::mount::{UnmountFlags, unmount};

cases! {
    a_second_start_takes_no_name_from_the_helper_that_serves,
    a_helper_publishes_while_its_successor_waits,
    a_volume_is_published_where_the_next_start_tries_a_mount,
    the_trial_of_a_start_cannot_be_unmounted_at_once,
}

const SIZE: u64 = 16 << 20;

fn a_second_start_takes_no_name_from_the_helper_that_serves(rig: &mut Rig) -> Result<()> {
    let inode = |rig: &Rig| -> Result<u64> { Ok(fs::symlink_metadata(rig.helper_socket())?.ino()) };
    let before = inode(rig)?;
    rig.helper()?.ask(&create("vol-a", directory_spec(SIZE)))?;
    for _ in 0..3 {
        let said = rig.refusal()?;
        ensure!(said.contains("another helper listens on"), "{said}");
        ensure!(said.lines().count() == 1, "it says more than why it does not serve: {said}");
        ensure!(inode(rig)? == before, "the socket is another");
        rig.helper()?.ask_all([bind("vol-a", "a"), unbind("vol-a", "a")])?;
    }
    Ok(())
}

fn a_helper_publishes_while_its_successor_waits(rig: &mut Rig) -> Result<()> {
    for (round, pause) in [0, 60, 200, 600, 1200].map(Duration::from_millis).into_iter().enumerate() {
        let first = rig.helper()?;
        let (directory, block) = (format!("vol-d{round}"), format!("vol-b{round}"));
        first.ask_all([create(&directory, directory_spec(SIZE)), create(&block, image_spec(SIZE))])?;
        let mut second = Daemon::start("second", &mut rig.helper_command()?, &rig.logs())?;
        sleep(pause);
        let at_device = || target("work", "b");
        first.ask(&bind(&directory, "d"))?;
        first.ask(&attach(&block))?;
        first.ask(&Request::MakeDevice { volume: volume(&block), target: at_device(), exclusive: false })?;
        fs::write(rig.target("d/file"), "content")?;
        rig.kill_helper()?;
        let serves = |second: &mut Daemon| {
            second.wait_until(rig.patience(Duration::from_secs(20)), || {
                HelperClient::welcomed(&rig.helper_socket()).map(drop)
            })
        };
        // Where all this has taken long, it has given up, and a service manager starts it again.
        if serves(&mut second).is_err() && second.check_alive().is_err() {
            second = Daemon::start("second", &mut rig.helper_command()?, &rig.logs())?;
            serves(&mut second)?;
        }
        let client = rig.helper()?;
        denied(client.request(&delete(&directory))?, ErrorKind::InUse, "published")?;
        denied(client.request(&delete(&block))?, ErrorKind::InUse, "published")?;
        ensure!(fs::read(rig.target("d/file"))? == b"content");
        client.ask(&unbind(&directory, "d"))?;
        client.ask(&Request::RemoveDevice { volume: volume(&block), target: at_device() })?;
        client.ask_all([delete(&directory), delete(&block)])?;
        second.kill()?;
        rig.start_helper()?;
    }
    Ok(())
}

/// A start unmounts nothing there but its own trial mount.
fn a_volume_is_published_where_the_next_start_tries_a_mount(rig: &mut Rig) -> Result<()> {
    let name = ".bulkhead-trial";
    rig.helper()?.ask(&create("vol-a", directory_spec(SIZE)))?;
    let request = bind("vol-a", name);
    denied(rig.helper()?.request(&request)?, ErrorKind::Refused, name)?;
    rig.helper()?.ask(&delete("vol-a"))?;
    rig.kill_helper()?;
    let path = rig.target(name);
    fs::create_dir(&path)?;
    let mount = || run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=0700", "none"]).arg(&path));
    mount()?;
    fs::write(path.join("file"), "content")?;
    let said = rig.refusal()?;
    ensure!(said.contains(name) && said.contains("unmount it"), "{said}");
    ensure!(fs::read(path.join("file"))? == b"content", "it was unmounted");
    // The remains of a killed start are removed, however many times they are mounted there.
    fs::remove_file(path.join("file"))?;
    mount()?;
    rig.start_helper()?;
    ensure!(!path.exists(), "the trial is left over");
    Ok(())
}

fn the_trial_of_a_start_cannot_be_unmounted_at_once(rig: &mut Rig) -> Result<()> {
    rig.kill_helper()?;
    let helper = rig.helper_command()?;
    // The first umount2 is that of the old root; strace does not follow children.
    let started = |when: &str| {
        let mut command = Command::new("strace");
        command.args(["-D", "-o", "/dev/null", "-e", "trace=umount2"]);
        command.args(["-e", &format!("inject=umount2:error=EBUSY:when={when}")]);
        command.arg(helper.get_program()).args(helper.get_args()).current_dir("/");
        command
    };
    let mut patient = Daemon::start("second", &mut started("2..9"), &rig.logs())?;
    patient
        .wait_until(rig.patience(Duration::from_secs(20)), || HelperClient::welcomed(&rig.helper_socket()).map(drop))?;
    patient.kill()?;
    let said = refusal(&mut started("2+"))?;
    ensure!(said.contains("fuser"), "{said}");
    // The next start removes it.
    rig.start_helper()?;
    let trial = rig.kubelet.root().join("pods/.bulkhead-trial");
    if trial.exists() {
        let _ = unmount(&trial, UnmountFlags::NOFOLLOW);
        anyhow::bail!("the trial is left over");
    }
    Ok(())
}
