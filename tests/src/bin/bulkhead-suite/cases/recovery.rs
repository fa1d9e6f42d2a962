//! Either process may be killed at any moment: nothing is lost, done twice or left over.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::Request;
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::helper::{self, bind, directory_spec, image_spec, unbind, volume};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::run;
use bulkhead_tests::stand::Stand;
use bulkhead_tests::wait;
use tonic::Code;

cases! {
    the_helper_is_killed_between_any_two_requests,
    the_frontend_is_killed_between_any_two_calls,
    both_are_killed_between_any_two_calls,
    the_frontend_keeps_working_when_the_helper_restarts,
    a_call_during_the_helpers_absence_is_unavailable_and_can_be_repeated,
    clients_wait_while_the_frontend_is_away,
    half_made_volumes_are_swept: Filesystem,
    a_volume_that_is_half_made_again_is_swept_as_well,
    interrupted_deletes_are_finished: Filesystem,
    foreign_entries_in_a_pool_stay,
    the_helper_is_killed_during_calls: Long,
    a_cancelled_call_runs_to_its_end,
    the_emptier_ends_with_the_helper: Kernel,
    what_may_be_in_a_broken_pool_is_not_said_to_be_gone: Bare,
    a_pool_mounted_noexec_is_published_the_same_after_a_restart: Bare,
}

const SIZE: i64 = 16 * MIB;

#[derive(Clone, Copy)]
enum Victim {
    Helper,
    Frontend,
    Both,
}

fn kill(stand: &mut Stand, victim: Victim) -> Result<()> {
    match victim {
        Victim::Helper => stand.restart_helper(),
        Victim::Frontend => stand.restart_frontend(),
        Victim::Both => {
            stand.kill_frontend()?;
            stand.restart_helper()?;
            stand.start_frontend()
        }
    }
}

type Step<'a> = &'a dyn Fn(&Stand) -> Result<()>;

/// The whole life of a volume in CSI calls; after each call the victim is killed, and then the call is repeated.
fn life(stand: &mut Stand, victim: Victim) -> Result<()> {
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        let (target, other) = (stand.target(id), stand.target("other"));
        let steps: [Step<'_>; 8] = [
            &|stand| Ok(stand.csi()?.create_volume(create(id, SIZE, capability.clone())).map(drop)?),
            &|stand| Ok(stand.csi()?.node_publish_volume(publish(id, &target, capability.clone())).map(drop)?),
            &|stand| Ok(stand.csi()?.node_publish_volume(publish(id, &other, capability.clone())).map(drop)?),
            &|stand| Ok(stand.csi()?.node_expand_volume(node_expand(id, &target, 2 * SIZE)).map(drop)?),
            &|stand| {
                let total = stand.csi()?.node_get_volume_stats(stats(id, &target))?.usage[0].total;
                ensure!(total == 2 * SIZE && mounts::at(&target)?.len() == 1 && mounts::at(&other)?.len() == 1);
                let devices = loops::backed_by(&stand.pool().device()?)?.len();
                ensure!(devices == usize::from(id == "vol-b"), "{devices} loop devices");
                Ok(())
            },
            &|stand| Ok(stand.csi()?.node_unpublish_volume(unpublish(id, &other)).map(drop)?),
            &|stand| Ok(stand.csi()?.node_unpublish_volume(unpublish(id, &target)).map(drop)?),
            &|stand| Ok(stand.csi()?.delete_volume(delete(id)).map(drop)?),
        ];
        for (number, step) in steps.iter().enumerate() {
            step(stand).with_context(|| format!("step {number} of {id}"))?;
            kill(stand, victim)?;
            step(stand).with_context(|| format!("step {number} of {id}, repeated"))?;
        }
    }
    Ok(())
}

/// Requests to the helper are smaller steps than calls of CSI.
fn the_helper_is_killed_between_any_two_requests(stand: &mut Stand) -> Result<()> {
    life(stand, Victim::Helper)?;
    let id = || volume("vol-c");
    let device = |path| Request::MakeDevice { volume: id(), target: helper::target("work", path), exclusive: false };
    let no_device = |path| Request::RemoveDevice { volume: id(), target: helper::target("work", path) };
    let grown = helper::bytes(u64::try_from(2 * SIZE)?);
    let size = u64::try_from(SIZE)?;
    for request in [
        helper::create("vol-c", image_spec(size)),
        Request::LoopAttach { volume: id(), read_only: false },
        device("c"),
        Request::GrowImage { volume: id(), size: grown },
        Request::LoopResize { volume: id() },
        device("d"),
        no_device("c"),
        no_device("d"),
        Request::LoopDetach { volume: id() },
        helper::delete("vol-c"),
        helper::create("vol-d", directory_spec(size)),
        bind("vol-d", "c"),
        unbind("vol-d", "c"),
        helper::delete("vol-d"),
    ] {
        let first = stand.helper()?.ask(&request)?;
        stand.restart_helper()?;
        let again = stand.helper()?.ask(&request)?;
        ensure!(first == again, "{request:?} is answered with {first:?}, and after a kill with {again:?}");
    }
    Ok(())
}

fn the_frontend_is_killed_between_any_two_calls(stand: &mut Stand) -> Result<()> {
    life(stand, Victim::Frontend)
}

fn both_are_killed_between_any_two_calls(stand: &mut Stand) -> Result<()> {
    life(stand, Victim::Both)
}

fn the_frontend_keeps_working_when_the_helper_restarts(stand: &mut Stand) -> Result<()> {
    let csi = stand.csi()?;
    let pid = stand.running_frontend()?.pid();
    for round in 0..3 {
        stand.restart_helper()?;
        wait::until(stand.patience(Duration::from_secs(10)), || {
            ensure!(csi.probe(ProbeRequest {})?.ready == Some(true), "not ready in round {round}");
            Ok(())
        })?;
        csi.create_volume(create("vol-a", SIZE, mount()))?;
        csi.delete_volume(delete("vol-a"))?;
        // New clients find it at the same path.
        stand.csi()?.probe(ProbeRequest {})?;
    }
    ensure!(stand.running_frontend()?.pid() == pid);
    stand.running_frontend()?.check_alive()
}

fn a_call_during_the_helpers_absence_is_unavailable_and_can_be_repeated(stand: &mut Stand) -> Result<()> {
    let csi = stand.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    stand.kill_helper()?;
    let answer = csi.node_publish_volume(publish("vol-a", &stand.target("a"), mount()));
    refused(answer, Code::Unavailable, "helper")?;
    stand.start_helper()?;
    wait::until(stand.patience(Duration::from_secs(10)), || {
        csi.node_publish_volume(publish("vol-a", &stand.target("a"), mount()))?;
        Ok(())
    })?;
    csi.node_unpublish_volume(unpublish("vol-a", &stand.target("a")))?;
    csi.delete_volume(delete("vol-a"))?;
    Ok(())
}

fn clients_wait_while_the_frontend_is_away(stand: &mut Stand) -> Result<()> {
    let inode = |stand: &Stand| -> Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::ino(&fs::symlink_metadata(stand.kubelet.csi_socket())?))
    };
    let before = inode(stand)?;
    stand.kill_frontend()?;
    let waiting = std::os::unix::net::UnixStream::connect(stand.kubelet.csi_socket())?;
    stand.start_frontend()?;
    drop(waiting);
    ensure!(inode(stand)? == before, "the kubelet would see another socket");
    Ok(())
}

fn half_made_volumes_are_swept(stand: &mut Stand) -> Result<()> {
    stand.kill_helper()?;
    let pool = stand.pool().directory.clone();
    fs::create_dir_all(pool.join(".making.vol-a/data/deep"))?;
    fs::create_dir(pool.join(".making.vol-b"))?;
    fs::write(pool.join(".making.vol-b/image"), vec![1; 1 << 20])?;
    stand.start_helper()?;
    let csi = stand.csi()?;
    // The names are available immediately, whatever remains to be emptied.
    for (id, capability) in [("vol-a", mount()), ("vol-b", block())] {
        wait::until(stand.patience(Duration::from_secs(10)), || {
            csi.create_volume(create(id, SIZE, capability.clone()))?;
            Ok(())
        })?;
        csi.delete_volume(delete(id))?;
    }
    Ok(())
}

/// A start finds the attempt that it has to set aside before the one that an earlier start set aside, under the first
/// number.
fn a_volume_that_is_half_made_again_is_swept_as_well(stand: &mut Stand) -> Result<()> {
    stand.kill_helper()?;
    let pool = stand.pool().directory.clone();
    for number in 0..20 {
        fs::create_dir(pool.join(format!(".making.vol-{number}")))?;
        fs::create_dir(pool.join(format!(".deleted.{}.making.vol-{number}", number + 1)))?;
    }
    stand.start_helper()?;
    stand.csi()?.create_volume(create("vol-0", SIZE, mount()))?;
    stand.csi()?.delete_volume(delete("vol-0"))?;
    wait::until(stand.patience(Duration::from_secs(10)), || {
        ensure!(stand.pool().entries()?.is_empty(), "{:?}", stand.pool().entries()?);
        Ok(())
    })
}

fn interrupted_deletes_are_finished(stand: &mut Stand) -> Result<()> {
    let csi = stand.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    let outer = stand.pool().volume("vol-a");
    for directory in 0..30 {
        fs::create_dir(outer.join(format!("data/{directory}")))?;
        for file in 0..25 {
            fs::write(outer.join(format!("data/{directory}/{file}")), "x")?;
        }
    }
    csi.delete_volume(delete("vol-a"))?;
    stand.restart_helper()?;
    wait::until(stand.patience(Duration::from_secs(15)), || {
        ensure!(stand.pool().entries()?.is_empty(), "{:?}", stand.pool().entries()?);
        Ok(())
    })
}

fn foreign_entries_in_a_pool_stay(stand: &mut Stand) -> Result<()> {
    let pool = stand.pool().directory.clone();
    stand.kill_helper()?;
    fs::create_dir_all(pool.join("Foreign/deep"))?;
    fs::write(pool.join("file"), "content")?;
    // A directory that only looks like a volume.
    fs::create_dir(pool.join("looks-like-one"))?;
    stand.start_helper()?;
    let csi = stand.csi()?;
    wait::until(stand.patience(Duration::from_secs(10)), || {
        Ok(csi.list_volumes(ListVolumesRequest::default()).map(drop)?)
    })?;
    let listed = csi.list_volumes(ListVolumesRequest::default())?;
    ensure!(listed.entries.is_empty(), "{listed:?}");
    // It may be one, restored without its record.
    refused(csi.delete_volume(delete("looks-like-one")), Code::FailedPrecondition, "no record")?;
    ensure!(fs::read(pool.join("file"))? == b"content" && pool.join("Foreign/deep").is_dir());
    ensure!(pool.join("looks-like-one").is_dir());
    for name in ["Foreign", "looks-like-one"] {
        fs::remove_dir_all(pool.join(name))?;
    }
    fs::remove_file(pool.join("file"))?;
    Ok(())
}

/// Kills at random moments, again and again.
fn the_helper_is_killed_during_calls(stand: &mut Stand) -> Result<()> {
    for round in 0..40_u64 {
        let id = format!("vol-{round}");
        let capability = if round % 2 == 0 { mount() } else { block() };
        let target = stand.target(&id);
        let socket = stand.kubelet.csi_socket();
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| {
                let Ok(csi) = bulkhead_tests::csi::CsiClient::connect(&socket) else { return };
                // Any of these may fail while the helper is gone.
                let _ = csi.create_volume(create(&id, SIZE, capability.clone()));
                let _ = csi.node_publish_volume(publish(&id, &target, capability.clone()));
                let _ = csi.node_expand_volume(node_expand(&id, &target, 2 * SIZE));
                let _ = csi.node_unpublish_volume(unpublish(&id, &target));
                let _ = csi.delete_volume(delete(&id));
            });
            std::thread::sleep(Duration::from_micros(round * 400));
            let killed = stand.restart_helper();
            let _ = calls.join();
            killed
        })?;
        let csi = stand.csi()?;
        wait::until(stand.patience(Duration::from_secs(10)), || {
            csi.create_volume(create(&id, SIZE, capability.clone()))?;
            Ok(())
        })?;
        csi.node_publish_volume(publish(&id, &target, capability.clone()))?;
        ensure!(mounts::at(&target)?.len() == 1, "round {round}");
        csi.node_unpublish_volume(unpublish(&id, &target))?;
        csi.delete_volume(delete(&id))?;
        ensure!(loops::backed_by(&stand.pool().device()?)?.is_empty(), "round {round} leaves a loop device");
    }
    Ok(())
}

fn a_cancelled_call_runs_to_its_end(stand: &mut Stand) -> Result<()> {
    for round in 0..10 {
        let mut hasty = stand.csi()?;
        hasty.set_limit(Duration::from_micros(200 * round));
        let _ = hasty.create_volume(create("vol-a", SIZE, block()));
        let csi = stand.csi()?;
        // While the first call is running, the second one is asked to retry.
        wait::until(stand.patience(Duration::from_secs(5)), || {
            csi.create_volume(create("vol-a", SIZE, block()))?;
            Ok(())
        })?;
        let target = stand.target("a");
        let _ = hasty.node_publish_volume(publish("vol-a", &target, block()));
        wait::until(stand.patience(Duration::from_secs(5)), || {
            csi.node_publish_volume(publish("vol-a", &target, block()))?;
            Ok(())
        })?;
        check_published_once(stand, &target)?;
        let _ = hasty.node_unpublish_volume(unpublish("vol-a", &target));
        for request in 0..2 {
            wait::until(stand.patience(Duration::from_secs(5)), || {
                if request == 0 {
                    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
                } else {
                    csi.delete_volume(delete("vol-a"))?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn check_published_once(stand: &Stand, target: &Path) -> Result<()> {
    let (mounted, devices) = (mounts::at(target)?, loops::backed_by(&stand.pool().device()?)?);
    ensure!(mounted.len() == 1 && devices.len() == 1, "{mounted:?} {devices:?}");
    Ok(())
}

fn the_emptier_ends_with_the_helper(stand: &mut Stand) -> Result<()> {
    use bulkhead_tests::observe::processes;
    let helper = i32::try_from(stand.running_helper()?.pid())?;
    let emptier = processes::descendants(helper)?.first().context("no emptier")?.pid;
    let runs = |pid: i32| Path::new(&format!("/proc/{pid}/stat")).exists() && !is_zombie(pid);
    stand.kill_helper()?;
    wait::until(stand.patience(Duration::from_secs(5)), || {
        ensure!(!runs(emptier), "the emptier still runs");
        Ok(())
    })?;
    stand.start_helper()?;
    // Conversely, the helper ends rather than serve without an emptier.
    let helper = i32::try_from(stand.running_helper()?.pid())?;
    let emptier = processes::descendants(helper)?.first().context("no emptier")?.pid;
    let pid = rustix::process::Pid::from_raw(emptier).context("process id")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let limit = stand.patience(Duration::from_secs(10));
    let status = stand.running_helper()?.wait(limit)?;
    ensure!(!status.success(), "{status}");
    stand.start_helper()
}

fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

fn what_may_be_in_a_broken_pool_is_not_said_to_be_gone(stand: &mut Stand) -> Result<()> {
    stand.add_pool("default")?;
    stand.add_pool("fast")?;
    stand.start()?;
    let target = stand.target("a");
    let fast = parameters(&[("pool", "fast")]);
    stand.csi()?.create_volume(CreateVolumeRequest { parameters: fast, ..create("vol-a", SIZE, mount()) })?;
    stand.csi()?.node_publish_volume(publish("vol-a", &target, mount()))?;
    let marker = stand.pools[1].directory.join(".bulkhead");
    let hidden = stand.work().join("marker");
    let content = fs::read(&marker)?;
    stand.kill_helper()?;
    fs::write(&hidden, &content)?;
    fs::remove_file(&marker)?;
    stand.start_helper()?;
    let csi = stand.csi()?;
    refused(csi.delete_volume(delete("vol-a")), Code::FailedPrecondition, "fast")?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", &target)), Code::FailedPrecondition, "fast")?;
    // A volume that is definitely in no pool has nothing to unpublish.
    csi.node_unpublish_volume(unpublish("vol-z", &stand.target("z")))?;
    ensure!(mounts::at(&target)?.len() == 1);
    stand.kill_helper()?;
    fs::write(&marker, &content)?;
    fs::remove_file(&hidden)?;
    stand.start_helper()?;
    stand.csi()?.node_unpublish_volume(unpublish("vol-a", &target))?;
    stand.csi()?.delete_volume(delete("vol-a"))?;
    Ok(())
}

fn a_pool_mounted_noexec_is_published_the_same_after_a_restart(stand: &mut Stand) -> Result<()> {
    stand.add_pool("default")?;
    let options = ["-o", "remount,bind,noexec,nodiratime"];
    run(Command::new("mount").args(options).arg(&stand.pool().directory))?;
    stand.start()?;
    let target = stand.target("a");
    stand.csi()?.create_volume(create("vol-a", SIZE, mount()))?;
    stand.csi()?.node_publish_volume(publish("vol-a", &target, mount()))?;
    ensure!(mounts::at(&target)?[0].has("noexec"), "{:?}", mounts::at(&target)?);
    stand.restart_helper()?;
    stand.csi()?.node_publish_volume(publish("vol-a", &target, mount()))?;
    ensure!(mounts::at(&target)?.len() == 1);
    stand.csi()?.node_unpublish_volume(unpublish("vol-a", &target))?;
    stand.csi()?.delete_volume(delete("vol-a"))?;
    Ok(())
}
