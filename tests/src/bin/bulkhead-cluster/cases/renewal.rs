//! An agent on a host renews its token itself, if it may.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, audit, manifests};
use bulkhead_tests::daemon::FRONTEND_UID;
use bulkhead_tests::monitoring;

cases! {
    on Cluster;
    an_agent_renews_its_token: Bare + Alone("grants the renewal of tokens"),
    an_agent_that_may_not_renew_its_token_uses_the_one_it_has: Bare,
}

/// Starts an agent that keeps its token in a directory, and returns the file.
fn add_renewing_agent(cluster: &mut Cluster) -> Result<PathBuf> {
    cluster.class = cluster.add_class(|_| {})?;
    let agent = cluster.add_agent_with(|rig| {
        rig.add_pool("default")?;
        let state = rig.work().join("state");
        fs::create_dir(&state)?;
        chown(&state, Some(FRONTEND_UID), Some(FRONTEND_UID))?;
        rig.frontend_flags.extend(["--state-dir".into(), state.into()]);
        Ok(())
    })?;
    Ok(agent.rig.work().join("state/token"))
}

/// Has a volume made, and returns the tokens of all requests so far, in the order in which they were first used, and that
/// with which the volume's object was created. Other requests may have been under way when the token was renewed.
fn credentials(cluster: &mut Cluster, name: &str) -> Result<(Vec<String>, String)> {
    cluster.create_claim(&on(claim(name, &cluster.class, "8Mi"), &cluster.node()))?;
    cluster.bound(name)?;
    let (mut used, mut latest) = (Vec::new(), String::new());
    for request in audit::log(&cluster.access, Some(&cluster.node()))? {
        if request.verb == "create" && request.resource == "persistentvolumes" {
            latest.clone_from(&request.credential);
        }
        if !used.contains(&request.credential) {
            used.push(request.credential);
        }
    }
    Ok((used, latest))
}

fn an_agent_renews_its_token(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    manifests::with_renewal(&kubeconfig, || {
        let file = add_renewing_agent(cluster)?;
        // It was given one that is good for an hour.
        cluster.agents[0].has_logged("the agent has renewed its token for the API server")?;
        let metadata = fs::metadata(&file)?;
        ensure!((metadata.uid(), metadata.mode() & 0o7777) == (FRONTEND_UID, 0o600), "{metadata:?}");
        let (used, latest) = credentials(cluster, "renewed")?;
        ensure!(used.len() == 2 && latest == used[1], "it used {used:?}, at last {latest}");

        cluster.agent().rig.restart_frontend()?;
        let after = credentials(cluster, "restarted")?;
        ensure!(after == (used.clone(), latest), "after a restart it used {after:?}, before it {used:?}");

        let (before, text) = (cluster.agents[0].log()?.len(), fs::read_to_string(&file)?);
        fs::write(&file, text.replace('.', ","))?;
        cluster.agent().rig.restart_frontend()?;
        cluster.access.wait(cluster.patience(), "a new token", || {
            let log = cluster.agents[0].log()?.split_off(before);
            ensure!(log.contains("is not used: it is no token; using that of "), "{log}");
            ensure!(log.contains("the agent has renewed its token"), "{log}");
            Ok(())
        })?;
        let (last, latest) = credentials(cluster, "damaged")?;
        ensure!(last.len() == 3 && latest == last[2], "it used {last:?}, at last {latest}");

        // One that the operator puts there later is good for an hour, and renewed at once. A token says in which second it
        // was issued.
        std::thread::sleep(Duration::from_millis(1100));
        let node = cluster.node();
        cluster.agents[0].renew_token(&cluster.access, Duration::from_secs(3600))?;
        cluster.agent().rig.restart_frontend()?;
        cluster.access.wait(cluster.patience(), "a token in place of the operator's new one", || {
            let log = audit::log(&cluster.access, Some(&node))?;
            let renewed = log.iter().filter(|request| request.resource == "serviceaccounts/token");
            let with: Vec<_> = renewed.map(|request| (&request.credential, request.status)).collect();
            ensure!(with.len() == 3 && with[2].1 == 201, "tokens were requested with {with:?}");
            ensure!(!last.contains(with[2].0), "the last one was requested with {}", with[2].0);
            Ok(())
        })
    })
}

fn an_agent_that_may_not_renew_its_token_uses_the_one_it_has(cluster: &mut Cluster) -> Result<()> {
    let file = add_renewing_agent(cluster)?;
    cluster.agents[0].has_logged(
        "the agent cannot renew its token for the API server, and uses the one that it has: renewing the agent's token failed at the API server: serviceaccounts \"bulkhead-agent\" is forbidden",
    )?;
    let (used, _) = credentials(cluster, "data")?;
    ensure!(used.len() == 1 && !file.exists(), "it used {used:?}");
    let (_, metrics) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
    let renewing = metrics.lines().find(|line| line.starts_with("bulkhead_token_renewing "));
    let renewing = renewing.context("no metric of the failure")?;
    ensure!(renewing.trim_end_matches(".0").ends_with(" 0"), "{renewing}");
    Ok(())
}
