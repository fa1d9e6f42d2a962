//! The process that mounts: what it is, what it may do, and what becomes of the helper without it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::takeover::Argument::Number;
use bulkhead_tests::takeover::{Outcome, Takeover};
use nix::libc;
use rustix::process::{Pid, Signal, kill_process_group};

use super::answers::Taken;
use super::{SIZE, check_detached, confined, mounter, mounter_uid, start};

cases! {
    a_mounter_is_a_user_of_its_own_with_one_capability_and_nothing_open: Bare,
    a_mounter_that_is_taken_over_opens_and_places_nothing: Bare,
    what_is_no_mount_of_the_device_is_not_placed: Bare,
    a_mount_that_takes_long_holds_up_nothing_else: Bare,
    a_helper_without_its_mounter_ends_and_is_started_anew: Bare,
    a_mounter_that_dies_at_a_request_makes_no_volume_unmountable: Bare,
    a_pod_with_very_many_processes_of_the_same_user_holds_up_no_mount: Bare,
    without_filesystems_there_is_no_mounter: Bare,
}

fn a_mounter_is_a_user_of_its_own_with_one_capability_and_nothing_open(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let pid = confined(rig)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let id = mounter_uid();
    for line in [
        &*format!("Uid:\t{id}\t{id}\t{id}\t{id}"),
        &format!("Gid:\t{id}\t{id}\t{id}\t{id}"),
        "CapPrm:\t0000000000200000",
        "CapEff:\t0000000000000000",
        "CapInh:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        ensure!(status.lines().any(|own| own.trim_end() == line), "{line:?} is not in {status}");
    }
    ensure!(status.lines().any(|line| line.starts_with("Groups:") && line.trim() == "Groups:"), "{status}");
    let mut open = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let number: u32 = entry.file_name().to_string_lossy().parse()?;
        if number > 2 {
            open.push(fs::read_link(entry.path())?);
        }
    }
    ensure!(open.len() == 1 && open[0].to_string_lossy().starts_with("socket:"), "{open:?}");
    // A tmpfs is all it has, and nothing in it is mounted there that the server keeps.
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a")])?;
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    ensure!(mounts.lines().count() == 1 && mounts.contains(" tmpfs bulkhead-mounting "), "{mounts}");
    let names: Vec<_> =
        fs::read_dir(format!("/proc/{pid}/root"))?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    ensure!(names.iter().all(|name| name.to_string_lossy().starts_with("filesystem")), "{names:?}");
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
    let server = rig.helper_pid()?.to_string();
    ensure!(network(&pid.to_string())? != network("self")? && network(&pid.to_string())? != network(&server)?);
    Ok(())
}

/// A pod chooses its user, and the kernel counts processes by user.
fn a_pod_with_very_many_processes_of_the_same_user_holds_up_no_mount(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let script = "for number in $(seq 200); do sleep 600 & done; echo done; wait";
    let mut pod = Command::new("setpriv");
    pod.args([&format!("--reuid={}", mounter_uid()), "--clear-groups", "sh", "-c", script]).process_group(0);
    let mut pod = pod.stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(pod.stdout.take().context("its output")?).read_line(&mut said)?;
    let group = Pid::from_raw(i32::try_from(pod.id())?).context("its process id")?;
    let helper = rig.helper()?;
    let mounted = helper.ask_all([
        create("vol-a", filesystem_spec(SIZE)),
        mount_filesystem("vol-a"),
        unmount_filesystem("vol-a"),
    ]);
    kill_process_group(group, Signal::KILL)?;
    pod.wait()?;
    ensure!(said == "done\n", "{said:?}");
    mounted?;
    helper.ask(&delete("vol-a"))?;
    check_detached(rig)
}

fn a_mounter_that_is_taken_over_opens_and_places_nothing(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let patience = rig.patience(Duration::from_secs(5));
    let calls: [(&str, i64, Vec<i64>); 9] = [
        ("openat", libc::SYS_openat, vec![-100, 0, 0]),
        ("openat2", libc::SYS_openat2, vec![-100, 0, 0, 24]),
        ("move_mount", libc::SYS_move_mount, vec![3, 0, 3, 0, 0x44]),
        ("open_tree", libc::SYS_open_tree, vec![3, 0, 0x8_1001]),
        ("umount2", libc::SYS_umount2, vec![0, 8]),
        ("mknodat", libc::SYS_mknodat, vec![-100, 0, 0o060_600, 0x700]),
        ("ioctl", libc::SYS_ioctl, vec![3, 0x4c05]),
        ("fsmount with device nodes", libc::SYS_fsmount, vec![3, 1, 2]),
        ("socket", libc::SYS_socket, vec![1, 5, 0]),
    ];
    for (what, call, arguments) in calls {
        let pid = confined(rig)?;
        let mut taken = Takeover::of(pid, patience)?;
        let arguments: Vec<_> = arguments.into_iter().map(Number).collect();
        let outcome = taken.call(call, &arguments)?;
        ensure!(outcome == Outcome::Killed, "{what}: {outcome:?}");
        drop(taken);
        rig.end_of_helper(patience).with_context(|| format!("the helper outlives {what}"))?;
        rig.start_helper()?;
    }
    Ok(())
}

/// A mounter that is taken over hands over the mount of another volume's device, which it was asked for as well.
fn what_is_no_mount_of_the_device_is_not_placed(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask_all(["vol-a", "vol-b"].map(|id| create(id, filesystem_spec(SIZE))))?;
    let answered = Taken::start(rig)?.exchange(rig, "vol-b")?;
    ensure!(answered.is_none(), "{answered:?}");
    rig.end_of_helper(rig.patience(Duration::from_secs(5))).context("the helper goes on with that mounter")?;
    ensure!(fs::read_to_string(rig.logs().join("helper.log"))?.contains("handed over something else"));
    let helper = rig.started_helper()?;
    helper.ask_all(["vol-a", "vol-b"].map(mount_filesystem))
}

fn a_helper_without_its_mounter_ends_and_is_started_anew(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let patience = rig.patience(Duration::from_secs(10));
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a"), bind("vol-a", "a")])?;
    fs::write(rig.target("a/file"), "content")?;
    processes::signal(mounter(rig)?, Signal::KILL)?;
    rig.end_of_helper(patience)?;
    let helper = rig.started_helper()?;
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    // One that is stopped holds up whoever waits for it, and nobody else.
    helper.ask(&create("vol-b", filesystem_spec(SIZE)))?;
    let pid = mounter(rig)?;
    processes::signal(pid, Signal::STOP)?;
    let waiting = rig.helper()?;
    waiting.send(&bulkhead_protocol::encode(&mount_filesystem("vol-b"))?)?;
    ensure!(!waiting.is_answered(Duration::from_millis(300))?, "the answer of a mounter that is stopped");
    helper.ask_all([bind("vol-a", "b"), unbind("vol-a", "b")])?;
    processes::signal(pid, Signal::CONT)?;
    ensure!(waiting.is_answered(patience)?, "no answer");
    Ok(())
}

/// Nobody can tell a mounter that is stopped from a kernel that goes through what a tenant has left.
fn a_mount_that_takes_long_holds_up_nothing_else(rig: &mut Rig) -> Result<()> {
    start(rig, 9)?;
    let helper = rig.helper()?;
    let ids: Vec<String> = (0..3).map(|number| format!("slow-{number}")).collect();
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a"), bind("vol-a", "a")])?;
    helper.ask_all(ids.iter().map(|id| create(id, filesystem_spec(SIZE))))?;
    let pid = mounter(rig)?;
    processes::signal(pid, Signal::STOP)?;
    let others = ids.iter().map(|id| {
        let client = rig.helper()?;
        client.send(&bulkhead_protocol::encode(&mount_filesystem(id))?)?;
        Ok(client)
    });
    let others = others.collect::<Result<Vec<_>>>()?;
    for number in 0..20 {
        let target = format!("b-{number}");
        helper.ask_all([bind("vol-a", &target), unbind("vol-a", &target)]).context("beside mounts that take long")?;
    }
    for client in &others {
        ensure!(client.is_answered(rig.patience(Duration::from_secs(8)))?, "a request waits for a mount");
        let answer: bulkhead_protocol::Response = bulkhead_protocol::decode(&client.receive()?.context("an answer")?)?;
        ensure!(answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Busy), "{answer:?}");
    }
    let status = helper.pool_status("default")?;
    let is_stuck = |condition: &Condition| matches!(condition, Condition::NotAnswering { .. });
    ensure!(status.available > 0 && !status.conditions.as_slice().iter().any(is_stuck), "{status:?}");
    // Those that were asked for are there in the end, without being asked for again.
    processes::signal(pid, Signal::CONT)?;
    for id in &ids {
        rig.eventually(20, || helper.ask(&mount_filesystem(id)).map(drop))?;
        helper.ask_all([unmount_filesystem(id), delete(id)])?;
    }
    // And it does not keep the helper from ending, or the next one from serving all.
    helper.ask(&create("vol-b", filesystem_spec(SIZE)))?;
    processes::signal(pid, Signal::STOP)?;
    let client = rig.helper()?;
    client.send(&bulkhead_protocol::encode(&mount_filesystem("vol-b"))?)?;
    ensure!(client.is_answered(rig.patience(Duration::from_secs(8)))?, "a request waits for a mount");
    rig.stop_helper()?;
    // A mounter that is not stopped ends with the helper.
    processes::signal(pid, Signal::CONT)?;
    let helper = rig.started_helper()?;
    helper.ask_all([
        mount_filesystem("vol-b"),
        bind("vol-b", "b"),
        unbind("vol-b", "b"),
        unmount_filesystem("vol-b"),
    ])?;
    helper.ask_all([unbind("vol-a", "a"), unmount_filesystem("vol-a"), delete("vol-a"), delete("vol-b")])?;
    check_detached(rig)
}

/// The helper ends with it. A request that comes first is not told of an error of the volume's.
fn a_mounter_that_dies_at_a_request_makes_no_volume_unmountable(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    rig.helper()?.ask(&create("vol-a", filesystem_spec(SIZE)))?;
    for round in 0..8 {
        let (helper, server, mounter) = (rig.helper()?, rig.helper_pid()?, confined(rig)?);
        processes::signal(server, Signal::STOP)?;
        helper.send(&bulkhead_protocol::encode(&mount_filesystem("vol-a"))?)?;
        processes::signal(mounter, Signal::KILL)?;
        processes::signal(server, Signal::CONT)?;
        // A connection that is reset is the end of the helper.
        if let Ok(Some(answer)) = helper.receive() {
            let answer: bulkhead_protocol::Response = bulkhead_protocol::decode(&answer)?;
            let is_error = matches!(&answer, Err(error) if error.kind != ErrorKind::Busy);
            ensure!(!is_error, "round {round}: {answer:?}");
        }
        rig.end_of_helper(rig.patience(Duration::from_secs(10)))?;
        let usage = rig.started_helper()?.usage("vol-a", None)?;
        ensure!(!matches!(usage.condition, Some(Condition::NotMountable { .. })), "round {round}: {usage:?}");
    }
    let helper = rig.helper()?;
    helper.ask_all([mount_filesystem("vol-a"), unmount_filesystem("vol-a")])
}

fn without_filesystems_there_is_no_mounter(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    let others = processes::descendants(rig.helper_pid()?)?;
    ensure!(others.len() == 2, "{others:?}");
    Ok(())
}
