//! A node with very many volumes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::node_client::NodeClient;
use bulkhead_tests::expect::refused;
use bulkhead_tests::helper;
use bulkhead_tests::observe::{loops, mounts, processes};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::Place;
use bulkhead_tests::strace::Tracer;
use bulkhead_tests::{cases, pool};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tonic::Code;

cases! {
    a_volume_is_published_beside_a_thousand_others: Bare,
    as_much_of_the_mount_table_is_read_beside_many_mounts_as_beside_none,
    many_block_volumes_have_many_devices,
    calls_for_different_volumes_do_not_wait_for_each_other,
    storms_of_calls_leave_nothing: Long,
}

fn a_volume_is_published_beside_a_thousand_others(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.pools[0].options.push_str(",overcommit=4");
    let csi = rig.started_csi()?;
    // An emulated processor takes long for a thousand: it does that many only on request.
    let number = if rig.run_options.place == Place::Host || rig.run_options.long { 1000 } else { 200 };
    let ids: Vec<String> = (0..number).map(|number| format!("vol-{number:04}")).collect();
    let mut took = Vec::new();
    for id in &ids {
        csi.create_volume(create(id, MIB, mount()))?;
        let before = rig.processor_time()?;
        csi.node_publish_volume(publish(id, &rig.target(id), mount()))?;
        took.push(rig.processor_time()?.saturating_sub(before));
    }
    ensure!(mounts::below(&rig.publish_directory())?.len() == ids.len());
    let listed = csi.list_pages(0)?.concat();
    ensure!(listed == ids, "{} of {} volumes are listed", listed.len(), ids.len());
    check_no_scan(&took)?;
    // All of this is found again.
    rig.restart()?;
    let csi = rig.csi()?;
    for id in &ids {
        if id.ends_with("00") {
            refused(csi.delete_volume(delete(id)), Code::FailedPrecondition, id)?;
            csi.node_publish_volume(publish(id, &rig.target(id), mount()))?;
            csi.node_get_volume_stats(stats(id, &rig.target(id)))?;
        }
    }
    ensure!(mounts::below(&rig.publish_directory())?.len() == ids.len());
    Ok(())
}

/// The last publish costs no more than the first one did: there was no scan of the mounts made by the others. It is the
/// processor's time that is compared, of which the shortest of many is what a call costs: others may use the machine now
/// that did not at first.
fn check_no_scan(took: &[Duration]) -> Result<()> {
    let shortest = |times: &[Duration]| times.iter().copied().min().unwrap_or_default();
    let scan = || {
        let before = processes::own_processor_time();
        fs::read("/proc/self/mountinfo")?;
        Ok(processes::own_processor_time().saturating_sub(before))
    };
    let scans = (0..50).map(|_| scan()).collect::<Result<Vec<_>>>()?;
    let (first, last, scan) = (shortest(&took[..100]), shortest(&took[took.len() - 100..]), shortest(&scans));
    let number = took.len();
    ensure!(
        last < first + scan / 2,
        "a publish took {first:?} at first and {last:?} beside {number} others, where one look at all mounts takes {scan:?}"
    );
    Ok(())
}

/// An exclusive publish and a deletion ask whether the host shows a volume anywhere, and have to be told by the kernel what
/// has changed to know without reading all of its mounts.
fn as_much_of_the_mount_table_is_read_beside_many_mounts_as_beside_none(rig: &mut Rig) -> Result<()> {
    if !is_told_of_mounts(rig.running_helper()?.pid())? {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        ensure!(version < (6, 15), "the helper is not told of mounts by Linux {release}");
        println!("Linux {release} does not tell of mounts");
        return Ok(());
    }
    let alone = read_in_a_life(rig)?;
    let (others, table) = (rig.work().join("others"), fs::read("/proc/self/mountinfo")?.len());
    fs::create_dir(&others)?;
    pool::run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&others))?;
    let mut beside = || -> Result<_> {
        for number in 0..2000 {
            let point = others.join(number.to_string());
            fs::write(&point, "")?;
            mount_bind("/dev/null", &point)?;
        }
        Ok((fs::read("/proc/self/mountinfo")?.len(), read_in_a_life(rig)?))
    };
    let beside = beside();
    unmount(&others, UnmountFlags::DETACH)?;
    let (longer, beside) = beside?;
    println!("{alone} bytes of {table} are read, and {beside} of {longer}");
    let more = longer.saturating_sub(table);
    ensure!(beside < alone + more / 10, "{alone} bytes are read at first, and {beside} beside {more} bytes of mounts");
    Ok(())
}

/// Returns whether a process is told what is mounted and unmounted.
fn is_told_of_mounts(process: u32) -> Result<bool> {
    let mut descriptors = fs::read_dir(format!("/proc/{process}/fd"))?;
    Ok(descriptors.any(|entry| {
        let file = entry.and_then(|entry| fs::read_link(entry.path()));
        file.is_ok_and(|file| file.as_os_str() == "anon_inode:[fanotify]")
    }))
}

/// The fewest bytes of the mount table that the threads which serve read while a volume is published exclusively, twice,
/// and deleted. Of several lives, since other tests mount at the same time.
fn read_in_a_life(rig: &mut Rig) -> Result<usize> {
    let (helper, process) = (rig.helper()?, i32::try_from(rig.running_helper()?.pid())?);
    let (log, mut least) = (rig.work().join("reads"), usize::MAX);
    for life in 0..5 {
        let id = format!("vol-{life}");
        let tracer = Tracer::follow_processes(&[process], &log, &["-e", "trace=pread64"])?;
        helper.ask(&helper::create(&id, helper::directory_spec(1 << 20)))?;
        for target in ["a", "b"] {
            helper.ask_all([helper::bind_exclusively(&id, target), helper::unbind(&id, target)])?;
        }
        helper.ask(&helper::delete(&id))?;
        // The first thread looks at the host now and then.
        let watching = format!("{process} ");
        let calls = tracer.end()?;
        let calls = calls.lines().filter(|call| !call.starts_with(&watching) && call.contains("pread64"));
        let read = calls.filter_map(|call| call.rsplit_once(" = ")?.1.trim().parse::<usize>().ok()).sum();
        least = least.min(read);
    }
    (least < usize::MAX).then_some(least).context("there were lives")
}

fn many_block_volumes_have_many_devices(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let ids: Vec<String> = (0..160).map(|number| format!("vol-{number}")).collect();
    for id in &ids {
        csi.create_volume(create(id, MIB, block()))?;
        csi.node_publish_volume(publish(id, &rig.target(id), block()))?;
    }
    ensure!(loops::backed_by(&rig.pool().device()?)?.len() == ids.len());
    // With a new hold for each, all former ones wait to be removed. That is no reason to attach nothing.
    rig.restart_helper()?;
    let csi = rig.csi()?;
    csi.create_volume(create("another", MIB, block()))?;
    csi.node_publish_volume(publish("another", &rig.target("another"), block()))?;
    for id in &ids {
        csi.node_publish_volume(publish(id, &rig.target(id), block()))?;
    }
    csi.node_unpublish_volume(unpublish("another", &rig.target("another")))?;
    csi.delete_volume(delete("another"))?;
    ensure!(loops::backed_by(&rig.pool().device()?)?.len() == ids.len());
    Ok(())
}

/// The calls for each volume come from a separate task, and none of them is asked to retry.
fn calls_for_different_volumes_do_not_wait_for_each_other(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let ids: Vec<String> = (0..24).map(|number| format!("vol-{number}")).collect();
    for id in &ids {
        csi.create_volume(create(id, MIB, mount()))?;
    }
    csi.run(async {
        let mut tasks = Vec::new();
        for id in ids.clone() {
            let mut client = NodeClient::new(csi.channel());
            let target = rig.target(&id);
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    client.node_publish_volume(publish(&id, &target, mount())).await?;
                    client.node_unpublish_volume(unpublish(&id, &target)).await?;
                }
                Ok::<_, tonic::Status>(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    })?;
    Ok(())
}

/// All kinds of calls for the same few volumes at once: each succeeds or is asked to retry, and nothing happens twice.
fn storms_of_calls_leave_nothing(rig: &mut Rig) -> Result<()> {
    use bulkhead_tests::csi::v1::controller_client::ControllerClient;
    let csi = rig.csi()?;
    csi.run(async {
        let mut tasks = Vec::new();
        for number in 0..16_u32 {
            let (mut controller, mut node) = (ControllerClient::new(csi.channel()), NodeClient::new(csi.channel()));
            let id = format!("vol-{}", number % 4);
            let capability = if number % 2 == 0 { mount() } else { block() };
            let target = rig.target(&id);
            tasks.push(tokio::spawn(async move {
                for _ in 0..100 {
                    let answers = [
                        controller.create_volume(create(&id, MIB, capability.clone())).await.err(),
                        node.node_publish_volume(publish(&id, &target, capability.clone())).await.err(),
                        controller.controller_expand_volume(controller_expand(&id, 2 * MIB)).await.err(),
                        node.node_unpublish_volume(unpublish(&id, &target)).await.err(),
                        controller.delete_volume(delete(&id)).await.err(),
                    ];
                    for status in answers.into_iter().flatten() {
                        let known = [Code::Aborted, Code::NotFound, Code::FailedPrecondition, Code::AlreadyExists];
                        if !known.contains(&status.code()) {
                            return Err(status);
                        }
                    }
                }
                Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    })?;
    for number in 0..4 {
        let id = format!("vol-{number}");
        csi.node_unpublish_volume(unpublish(&id, &rig.target(&id)))?;
        csi.delete_volume(delete(&id))?;
    }
    Ok(())
}
