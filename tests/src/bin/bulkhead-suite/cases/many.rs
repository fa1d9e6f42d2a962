//! A node with very many volumes.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::node_client::NodeClient;
use bulkhead_tests::expect::refused;
use bulkhead_tests::observe::{loops, mounts, processes};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::Place;
use tonic::Code;

cases! {
    a_volume_is_published_beside_a_thousand_others: Bare,
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
