//! A pool whose frozen filesystem hangs, while another pool is served.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind, PoolStatus, Reply, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests as csi;
use bulkhead_tests::csi::v1::controller_client::ControllerClient;
use bulkhead_tests::csi::v1::{CreateVolumeRequest, ProbeRequest};
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::PoolFilesystem;

use super::frozen::Frozen;

cases! {
    creations_that_hang_leave_threads_for_other_pools: Bare + Slow,
    creations_that_hang_leave_connections_for_other_pools: Bare,
    a_start_beside_a_frozen_pool_serves_the_others: Bare + Filesystem + Slow,
    the_status_of_a_frozen_pool_is_answered: Bare + Filesystem,
}

const SIZE: u64 = 16 << 20;

fn two_pools(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    rig.start()
}

fn is_stuck(status: &PoolStatus) -> bool {
    status.conditions.as_slice().iter().any(|condition| matches!(condition, Condition::NotAnswering { .. }))
}

fn creations_that_hang_leave_threads_for_other_pools(rig: &mut Rig) -> Result<()> {
    two_pools(rig)?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    let mut clients = (0..20).map(|_| rig.helper()).collect::<Result<Vec<_>>>()?;
    for (number, client) in clients.iter().enumerate() {
        client.send(&encode(&create(&format!("hang-{number}"), directory_spec(SIZE)))?)?;
    }
    let mut hanging = Vec::new();
    for client in clients.drain(..) {
        if client.is_answered(rig.patience(Duration::from_millis(500)))? {
            let answer: Response = decode(&client.receive()?.context("the connection is closed")?)?;
            let error = answer.err().context("a volume is created in a frozen filesystem")?;
            ensure!(error.kind == ErrorKind::Busy && error.message.as_str().contains("pool default"), "{error:?}");
        } else {
            hanging.push(client);
        }
    }
    ensure!(hanging.len() == 16, "{} creations hang", hanging.len());
    let begun = Instant::now();
    let helper = rig.helper()?;
    for _ in 0..20 {
        helper.ask_all([create_in("other", "hang-a", directory_spec(SIZE)), bind("hang-a", "a")])?;
        helper.usage("hang-a", Some(target("work", "a")))?;
        helper.ask_all([unbind("hang-a", "a"), delete("hang-a")])?;
        helper.pool_status("other")?;
    }
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(5)), "it took {:?}", begun.elapsed());
    // After a while the status reports it, although nothing can be learned from the filesystem.
    rig.eventually(25, || {
        helper.check_status("default", |status| is_stuck(status) && status.available == 0 && status.total > 0)
    })?;
    helper.check_status("other", |status| !is_stuck(status))?;
    drop(frozen);
    for client in &hanging {
        let answer: Response = decode(&client.receive()?.context("the connection is closed")?)?;
        ensure!(matches!(answer, Ok(Reply::Size(_))), "{answer:?}");
    }
    ensure!(helper.pool_status("default")?.available > 0);
    for number in 0..20 {
        helper.ask(&delete(&format!("hang-{number}")))?;
    }
    Ok(())
}

fn creations_that_hang_leave_connections_for_other_pools(rig: &mut Rig) -> Result<()> {
    two_pools(rig)?;
    let slow = rig.csi()?;
    let parameters = |pool| csi::parameters(&[("pool", pool)]);
    let create = |id: &str, pool| CreateVolumeRequest {
        parameters: parameters(pool),
        ..csi::create(id, csi::MIB, csi::mount())
    };
    let ids: Vec<String> = (0..20).map(|number| format!("hang-{number}")).collect();
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    let creations: Vec<_> = slow.run(async {
        let creations = ids.iter().map(|id| {
            let (mut client, request) = (ControllerClient::new(slow.channel()), create(id, "default"));
            tokio::spawn(async move { client.create_volume(request).await.map(drop) })
        });
        let creations = creations.collect();
        tokio::time::sleep(Duration::from_secs(3)).await;
        creations
    });
    let begun = Instant::now();
    let client = rig.csi()?;
    let target = rig.target("a");
    for _ in 0..10 {
        client.create_volume(create("hang-a", "other"))?;
        client.node_publish_volume(csi::publish("hang-a", &target, csi::mount()))?;
        client.node_get_volume_stats(csi::stats("hang-a", &target))?;
        client.node_unpublish_volume(csi::unpublish("hang-a", &target))?;
        client.delete_volume(csi::delete("hang-a"))?;
        client.probe(ProbeRequest {})?;
    }
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(10)), "it took {:?}", begun.elapsed());
    // A frontend that replaces this one is served as well.
    rig.restart_frontend()?;
    let client = rig.csi()?;
    client.create_volume(create("hang-a", "other"))?;
    client.delete_volume(csi::delete("hang-a"))?;
    drop(frozen);
    drop((creations, slow));
    for id in &ids {
        rig.eventually(10, || Ok(client.create_volume(create(id, "default"))?))?;
        // A creation that is carried out only now would be left over.
        client.delete_volume(csi::delete(id))?;
    }
    Ok(())
}

fn a_start_beside_a_frozen_pool_serves_the_others(rig: &mut Rig) -> Result<()> {
    two_pools(rig)?;
    rig.helper()?.ask_all([create("hang-a", directory_spec(SIZE)), bind("hang-a", "a")])?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    rig.kill_helper()?;
    rig.start_helper_beside_hung()?;
    let helper = rig.helper()?;
    helper.check_serves("other")?;
    processes::check_children(rig.helper_pid()?)?;
    for request in [unbind("hang-a", "a"), delete("hang-a"), create("hang-a", directory_spec(SIZE))] {
        denied(helper.request(&request)?, ErrorKind::PoolBroken, "is not served")?;
    }
    drop(frozen);
    // The helper ends in an orderly way once the pool answers, so that the next one serves it.
    let limit = rig.patience(Duration::from_secs(30));
    rig.await_end_of_helper(limit)?;
    rig.start_helper()
}

fn the_status_of_a_frozen_pool_is_answered(rig: &mut Rig) -> Result<()> {
    two_pools(rig)?;
    rig.helper()?.ask(&create("hang-a", directory_spec(SIZE)))?;
    // No earlier figures are known.
    rig.restart_helper()?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    let mut waiting = Vec::new();
    rig.eventually(25, || {
        let client = rig.helper()?;
        client.send(&encode(&Request::PoolStatus { pool: "default".parse()? })?)?;
        if !client.is_answered(rig.patience(Duration::from_secs(2)))? {
            waiting.push(client);
            bail!("{} connections wait", waiting.len());
        }
        match decode::<Response>(&client.receive()?.context("the connection is closed")?)? {
            Ok(Reply::Pool(_)) => Ok(()),
            other => bail!("{other:?} instead of a status"),
        }
    })?;
    // ext4 does not answer about quotas until it is thawed. One thread waits for that, and the others do not wait for
    // it.
    let most = usize::from(rig.run_options.pool_fs == PoolFilesystem::Ext4);
    ensure!(waiting.len() <= most, "{} wait", waiting.len());
    rig.helper()?.pool_status("other")?;
    drop(frozen);
    for client in waiting {
        let answer: Response = decode(&client.receive()?.context("the connection is closed")?)?;
        ensure!(matches!(answer, Ok(Reply::Pool(_))), "{answer:?}");
    }
    Ok(())
}
