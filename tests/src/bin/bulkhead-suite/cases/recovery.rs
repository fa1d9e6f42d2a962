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
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::{loops, mounts, processes};
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use rustix::process::Signal;
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
    the_emptier_ends_with_the_helper,
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

fn kill(rig: &mut Rig, victim: Victim) -> Result<()> {
    match victim {
        Victim::Helper => rig.restart_helper(),
        Victim::Frontend => rig.restart_frontend(),
        Victim::Both => {
            rig.kill_frontend()?;
            rig.restart_helper()?;
            rig.start_frontend()
        }
    }
}

type Step<'a> = &'a dyn Fn(&Rig) -> Result<()>;

/// The whole life of a volume in CSI calls; after each call the victim is killed, and then the call is repeated.
fn life(rig: &mut Rig, victim: Victim) -> Result<()> {
    for (id, capability) in [(own("vol-a"), mount()), (own("vol-b"), block())] {
        let (target, other) = (rig.target(id), rig.target("other"));
        let steps: [Step<'_>; 8] = [
            &|rig| Ok(rig.csi()?.create_volume(create(id, SIZE, capability.clone())).map(drop)?),
            &|rig| Ok(rig.csi()?.node_publish_volume(publish(id, &target, capability.clone())).map(drop)?),
            &|rig| Ok(rig.csi()?.node_publish_volume(publish(id, &other, capability.clone())).map(drop)?),
            &|rig| Ok(rig.csi()?.node_expand_volume(node_expand(id, &target, 2 * SIZE)).map(drop)?),
            &|rig| {
                let total = rig.csi()?.node_get_volume_stats(stats(id, &target))?.usage[0].total;
                ensure!(total == 2 * SIZE && mounts::at(&target)?.len() == 1 && mounts::at(&other)?.len() == 1);
                let devices = loops::backed_by(&rig.pool().device()?)?.len();
                ensure!(devices == usize::from(id == own("vol-b")), "{devices} loop devices");
                Ok(())
            },
            &|rig| Ok(rig.csi()?.node_unpublish_volume(unpublish(id, &other)).map(drop)?),
            &|rig| Ok(rig.csi()?.node_unpublish_volume(unpublish(id, &target)).map(drop)?),
            &|rig| Ok(rig.csi()?.delete_volume(delete(id)).map(drop)?),
        ];
        for (number, step) in steps.iter().enumerate() {
            step(rig).with_context(|| format!("step {number} of {id}"))?;
            kill(rig, victim)?;
            step(rig).with_context(|| format!("step {number} of {id}, repeated"))?;
        }
    }
    Ok(())
}

/// Requests to the helper are smaller steps than calls of CSI.
fn the_helper_is_killed_between_any_two_requests(rig: &mut Rig) -> Result<()> {
    life(rig, Victim::Helper)?;
    let id = || volume(own("vol-c"));
    let device = |path| Request::MakeDevice { volume: id(), target: helper::target("work", path), exclusive: false };
    let no_device = |path| Request::RemoveDevice { volume: id(), target: helper::target("work", path) };
    let grown = helper::bytes(u64::try_from(2 * SIZE)?);
    let size = u64::try_from(SIZE)?;
    for request in [
        helper::create(own("vol-c"), image_spec(size)),
        Request::LoopAttach { volume: id(), read_only: false },
        device("c"),
        Request::GrowImage { volume: id(), size: grown },
        Request::LoopResize { volume: id() },
        device("d"),
        no_device("c"),
        no_device("d"),
        Request::LoopDetach { volume: id() },
        helper::delete(own("vol-c")),
        helper::create(own("vol-d"), directory_spec(size)),
        bind(own("vol-d"), "c"),
        unbind(own("vol-d"), "c"),
        helper::delete(own("vol-d")),
    ] {
        let first = rig.helper()?.ask(&request)?;
        rig.restart_helper()?;
        let again = rig.helper()?.ask(&request)?;
        ensure!(first == again, "{request:?} is answered with {first:?}, and after a kill with {again:?}");
    }
    Ok(())
}

fn the_frontend_is_killed_between_any_two_calls(rig: &mut Rig) -> Result<()> {
    life(rig, Victim::Frontend)
}

fn both_are_killed_between_any_two_calls(rig: &mut Rig) -> Result<()> {
    life(rig, Victim::Both)
}

fn the_frontend_keeps_working_when_the_helper_restarts(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let pid = rig.running_frontend()?.pid();
    for round in 0..3 {
        rig.restart_helper()?;
        rig.eventually(10, || csi.check_ready()).with_context(|| format!("not ready in round {round}"))?;
        csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
        csi.delete_volume(delete(own("vol-a")))?;
        // New clients find it at the same path.
        rig.csi()?.probe(ProbeRequest {})?;
    }
    ensure!(rig.running_frontend()?.pid() == pid);
    rig.running_frontend()?.check_alive()
}

fn a_call_during_the_helpers_absence_is_unavailable_and_can_be_repeated(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    rig.kill_helper()?;
    let answer = csi.node_publish_volume(publish(own("vol-a"), &rig.target("a"), mount()));
    refused(answer, Code::Unavailable, "helper")?;
    rig.start_helper()?;
    rig.eventually(10, || Ok(csi.node_publish_volume(publish(own("vol-a"), &rig.target("a"), mount()))?))?;
    Ok(())
}

fn clients_wait_while_the_frontend_is_away(rig: &mut Rig) -> Result<()> {
    let inode = |rig: &Rig| -> Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::ino(&fs::symlink_metadata(rig.kubelet.csi_socket())?))
    };
    let before = inode(rig)?;
    rig.kill_frontend()?;
    let waiting = std::os::unix::net::UnixStream::connect(rig.kubelet.csi_socket())?;
    rig.start_frontend()?;
    drop(waiting);
    ensure!(inode(rig)? == before, "the kubelet would see another socket");
    Ok(())
}

fn half_made_volumes_are_swept(rig: &mut Rig) -> Result<()> {
    rig.kill_helper()?;
    let pool = rig.pool().directory.clone();
    fs::create_dir_all(pool.join(format!(".making.{}/data/deep", own("vol-a"))))?;
    fs::create_dir(pool.join(format!(".making.{}", own("vol-b"))))?;
    fs::write(pool.join(format!(".making.{}/image", own("vol-b"))), vec![1; 1 << 20])?;
    rig.start_helper()?;
    let csi = rig.csi()?;
    // The names are available immediately, whatever remains to be emptied.
    for (id, capability) in [(own("vol-a"), mount()), (own("vol-b"), block())] {
        rig.eventually(10, || Ok(csi.create_volume(create(id, SIZE, capability.clone()))?))?;
    }
    Ok(())
}

/// A start finds the attempt that it has to set aside before the one that an earlier start set aside, under the first
/// number.
fn a_volume_that_is_half_made_again_is_swept_as_well(rig: &mut Rig) -> Result<()> {
    rig.kill_helper()?;
    let pool = rig.pool().directory.clone();
    for number in 0..20 {
        fs::create_dir(pool.join(format!(".making.vol-{number}")))?;
        fs::create_dir(pool.join(format!(".deleted.{}.making.vol-{number}", number + 1)))?;
    }
    rig.start_helper()?;
    rig.csi()?.create_volume(create(own("vol-0"), SIZE, mount()))?;
    rig.csi()?.delete_volume(delete(own("vol-0")))?;
    rig.eventually(10, || rig.pool().holds(&[]))
}

fn interrupted_deletes_are_finished(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create(own("vol-a"), SIZE, mount()))?;
    let outer = rig.pool().volume(own("vol-a"));
    for directory in 0..30 {
        fs::create_dir(outer.join(format!("data/{directory}")))?;
        for file in 0..25 {
            fs::write(outer.join(format!("data/{directory}/{file}")), "x")?;
        }
    }
    csi.delete_volume(delete(own("vol-a")))?;
    rig.restart_helper()?;
    rig.eventually(15, || rig.pool().holds(&[]))
}

fn foreign_entries_in_a_pool_stay(rig: &mut Rig) -> Result<()> {
    let pool = rig.pool().directory.clone();
    rig.kill_helper()?;
    fs::create_dir_all(pool.join("Foreign/deep"))?;
    fs::write(pool.join("file"), "content")?;
    // A directory that only looks like a volume.
    fs::create_dir(pool.join("looks-like-one"))?;
    rig.start_helper()?;
    let csi = rig.csi()?;
    rig.eventually(10, || Ok(csi.list_volumes(ListVolumesRequest::default()).map(drop)?))?;
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
fn the_helper_is_killed_during_calls(rig: &mut Rig) -> Result<()> {
    for round in 0..40_u64 {
        let id = format!("vol-{round}");
        let capability = if round % 2 == 0 { mount() } else { block() };
        let target = rig.target(&id);
        let socket = rig.kubelet.csi_socket();
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
            let killed = rig.restart_helper();
            let _ = calls.join();
            killed
        })?;
        let csi = rig.csi()?;
        rig.eventually(10, || Ok(csi.create_volume(create(&id, SIZE, capability.clone()))?))?;
        csi.node_publish_volume(publish(&id, &target, capability.clone()))?;
        ensure!(mounts::at(&target)?.len() == 1, "round {round}");
        csi.node_unpublish_volume(unpublish(&id, &target))?;
        csi.delete_volume(delete(&id))?;
        ensure!(loops::backed_by(&rig.pool().device()?)?.is_empty(), "round {round} leaves a loop device");
    }
    Ok(())
}

fn a_cancelled_call_runs_to_its_end(rig: &mut Rig) -> Result<()> {
    for round in 0..10 {
        let mut hasty = rig.csi()?;
        hasty.set_limit(Duration::from_micros(200 * round));
        let _ = hasty.create_volume(create(own("vol-a"), SIZE, block()));
        let csi = rig.csi()?;
        // While the first call is running, the second one is asked to retry.
        rig.eventually(5, || Ok(csi.create_volume(create(own("vol-a"), SIZE, block()))?))?;
        let target = rig.target("a");
        let _ = hasty.node_publish_volume(publish(own("vol-a"), &target, block()));
        rig.eventually(5, || Ok(csi.node_publish_volume(publish(own("vol-a"), &target, block()))?))?;
        check_published_once(rig, &target)?;
        let _ = hasty.node_unpublish_volume(unpublish(own("vol-a"), &target));
        for request in 0..2 {
            rig.eventually(5, || {
                if request == 0 {
                    csi.node_unpublish_volume(unpublish(own("vol-a"), &target))?;
                } else {
                    csi.delete_volume(delete(own("vol-a")))?;
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn check_published_once(rig: &Rig, target: &Path) -> Result<()> {
    let (mounted, devices) = (mounts::at(target)?, loops::backed_by(&rig.pool().device()?)?);
    ensure!(mounted.len() == 1 && devices.len() == 1, "{mounted:?} {devices:?}");
    Ok(())
}

fn the_emptier_ends_with_the_helper(rig: &mut Rig) -> Result<()> {
    let emptier = rig.emptier_pid()?;
    rig.kill_helper()?;
    rig.eventually(5, || {
        let runs = processes::status(emptier, "State").is_ok_and(|state| !state.starts_with('Z'));
        ensure!(!runs, "the emptier still runs");
        Ok(())
    })?;
    rig.start_helper()?;
    // Conversely, the helper ends rather than serve without an emptier.
    processes::signal(rig.emptier_pid()?, Signal::KILL)?;
    let status = rig.end_of_helper(rig.patience(Duration::from_secs(10)))?;
    ensure!(!status.success(), "{status}");
    rig.start_helper()
}

fn what_may_be_in_a_broken_pool_is_not_said_to_be_gone(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "fast"])?;
    rig.start()?;
    let target = rig.target("a");
    let fast = parameters(&[("pool", "fast")]);
    rig.csi()?.create_volume(CreateVolumeRequest { parameters: fast, ..create(own("vol-a"), SIZE, mount()) })?;
    rig.csi()?.node_publish_volume(publish(own("vol-a"), &target, mount()))?;
    let marker = rig.pools[1].directory.join(".bulkhead");
    let hidden = rig.work().join("marker");
    let content = fs::read(&marker)?;
    rig.kill_helper()?;
    fs::write(&hidden, &content)?;
    fs::remove_file(&marker)?;
    rig.start_helper()?;
    let csi = rig.csi()?;
    refused(csi.delete_volume(delete(own("vol-a"))), Code::FailedPrecondition, "fast")?;
    refused(csi.node_unpublish_volume(unpublish(own("vol-a"), &target)), Code::FailedPrecondition, "fast")?;
    // A volume that is definitely in no pool has nothing to unpublish.
    csi.node_unpublish_volume(unpublish(own("vol-z"), &rig.target("z")))?;
    ensure!(mounts::at(&target)?.len() == 1);
    rig.kill_helper()?;
    fs::write(&marker, &content)?;
    fs::remove_file(&hidden)?;
    rig.start_helper()
}

fn a_pool_mounted_noexec_is_published_the_same_after_a_restart(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let options = ["-o", "remount,bind,noexec,nodiratime"];
    run(Command::new("mount").args(options).arg(&rig.pool().directory))?;
    rig.start()?;
    let target = rig.target("a");
    rig.csi()?.create_volume(create(own("vol-a"), SIZE, mount()))?;
    rig.csi()?.node_publish_volume(publish(own("vol-a"), &target, mount()))?;
    ensure!(mounts::at(&target)?[0].has("noexec"), "{:?}", mounts::at(&target)?);
    rig.restart_helper()?;
    rig.csi()?.node_publish_volume(publish(own("vol-a"), &target, mount()))?;
    ensure!(mounts::at(&target)?.len() == 1);
    Ok(())
}
