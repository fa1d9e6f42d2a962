//! A tenant has a filesystem of its own (fuse(4)), and a frontend that was taken over helps it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Request, encode};
use bulkhead_tests::attacker::spent_node;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use rustix::mount::{UnmountFlags, unmount};

use crate::cases::filesystems::{SIZE as FILESYSTEM, make_pool};

/// Helpers of other tests that start meanwhile would start anew once it answers.
const HANGS: &str = "a device does not answer";

cases! {
    a_spent_number_bound_to_a_file_that_fails_does_not_keep_the_helper_from_starting: Host,
    a_spent_number_bound_to_a_file_whose_server_is_gone_does_not_keep_the_helper_from_starting: Host,
    spent_numbers_bound_to_files_that_hang_do_not_keep_the_helper_from_starting: Host + Alone(HANGS),
    a_device_that_hangs_keeps_no_filesystem_mounted: Bare + Host + Alone(HANGS),
    a_target_on_a_filesystem_that_hangs_keeps_no_thread: Host,
}

const SIZE: u64 = 1 << 20;

struct Server(Child, PathBuf);

impl Server {
    fn start(mode: &str, point: &Path, node: Option<&Path>) -> Result<Self> {
        fs::create_dir_all(point)?;
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("fuse.py"), mode]).arg(point).args(node);
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        BufReader::new(server.stdout.take().context("its output")?).read_line(&mut said)?;
        ensure!(said == "done\n", "the tenant's server says {said:?}");
        Ok(Self(server, point.to_owned()))
    }

    fn end(mut self) -> Result<()> {
        // Whoever waits for it is told, the server itself too: it could not end otherwise. What is in use stays mounted.
        let is_unmounted = unmount(&self.1, UnmountFlags::FORCE).is_ok();
        // This closes its input first.
        self.0.wait()?;
        if is_unmounted { Ok(()) } else { run(Command::new("umount").arg("--lazy").arg(&self.1)) }
    }
}

fn starts_beside(rig: &mut Rig, mode: &str, number: usize) -> Result<()> {
    start_beside(rig, mode, number, |_| Ok(()))
}

/// Starts the helper beside files that behave so, and does something with it.
fn start_beside(rig: &mut Rig, mode: &str, number: usize, act: impl FnOnce(&mut Rig) -> Result<()>) -> Result<()> {
    let mut servers = Vec::new();
    let mut nodes = Vec::new();
    for index in 0..number {
        let node = spent_node(rig, &format!("own-node-{index}"), image_spec(SIZE))?;
        servers.push(Server::start(mode, &rig.work().join(format!("tenant-{index}")), Some(&node))?);
        nodes.push(node);
    }
    rig.kill_helper()?;
    let begun = std::time::Instant::now();
    let started = rig.start_helper();
    println!("{number} {mode}: the start took {:?}: {started:?}", begun.elapsed());
    let acted = if started.is_ok() { act(rig) } else { Ok(()) };
    for server in servers {
        server.end()?;
    }
    for node in &nodes {
        // One that belongs to the tenant stays bound.
        let _ = Command::new("perl")
            .args(["-e", "open(my $d, '<', $ARGV[0]) or exit 1; ioctl($d, 0x4c01, 0)"])
            .arg(node)
            .status()?;
    }
    if started.is_err() {
        rig.abandon();
        std::thread::sleep(Duration::from_secs(2));
        rig.start_helper()?;
    } else if mode == "hang" {
        // What did not answer at the start does now, and the helper ends for it.
        rig.await_end_of_helper(rig.patience(Duration::from_secs(20)))?;
        rig.start_helper()?;
    }
    started.and(acted)
}

fn a_spent_number_bound_to_a_file_that_fails_does_not_keep_the_helper_from_starting(rig: &mut Rig) -> Result<()> {
    starts_beside(rig, "error", 1)
}

fn a_spent_number_bound_to_a_file_whose_server_is_gone_does_not_keep_the_helper_from_starting(
    rig: &mut Rig,
) -> Result<()> {
    starts_beside(rig, "die", 1)
}

fn spent_numbers_bound_to_files_that_hang_do_not_keep_the_helper_from_starting(rig: &mut Rig) -> Result<()> {
    starts_beside(rig, "hang", 3)
}

/// The child that looks at the device cannot be killed, and outlives the helper that mounts filesystems after that look.
fn a_device_that_hangs_keeps_no_filesystem_mounted(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    rig.start_helper()?;
    start_beside(rig, "hang", 1, |rig| {
        let helper = rig.helper()?;
        processes::check_children(rig.helper_pid()?)?;
        for id in [own("vol-a"), own("vol-b")] {
            helper.ask_all([create(id, filesystem_spec(FILESYSTEM)), mount_filesystem(id), bind(id, id)])?;
        }
        drop(helper);
        let helper = rig.restarted_helper()?;
        for id in [own("vol-a"), own("vol-b")] {
            helper.ask(&unbind(id, id))?;
            helper.ask_patiently(&unmount_filesystem(id))?;
            helper.ask(&delete(id))?;
        }
        Ok(())
    })
}

/// Another driver's volume in a pod, whose filesystem the pod itself serves, as some drivers have it.
fn a_target_on_a_filesystem_that_hangs_keeps_no_thread(rig: &mut Rig) -> Result<()> {
    let path = "pod/volumes/kubernetes.io~csi/pv/mount";
    let server = Server::start("bad", &rig.kubelet.pods().join(path), None)?;
    let client = rig.helper()?;
    let request = Request::Unmount { volume: volume("vol-unknown"), target: target("kubelet-pods", path) };
    client.send(&encode(&request)?)?;
    let answered = client.is_answered(rig.patience(Duration::from_secs(5)))?;
    let again = rig.helper()?.request(&request)?;
    drop(client);
    server.end()?;
    fs::remove_dir_all(rig.kubelet.pods().join("pod"))?;
    ensure!(answered, "the request hangs; the same request again: {again:?}");
    Ok(())
}
