//! What each state of volumes and pools looks like to `bulkheadctl doctor`, in a pod and in a CSINode: the table of
//! docs/errors.md, which is made here by asking.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
mod states;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::helper::Helper;
use bulkhead_frontend::inspection::Inspector;
use bulkhead_frontend::kubernetes::View;
use bulkhead_frontend::proto::csi::node_server::Node;
use bulkhead_frontend::proto::csi::{
    NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
};
use bulkhead_frontend::proto::inspection::DiagnoseRequest;
use bulkhead_frontend::proto::inspection::inspection_server::Inspection;
use bulkhead_frontend::volumes::{Unseen, Volumes};
use bulkhead_model::check::{Check, Outcome};
use bulkhead_model::volumes::{Ailment, PoolCondition};
use bulkhead_protocol::{Error, Listed, NameHash, PoolStatus, Reply, Request, Usage, VolumeKind, VolumeSpec};
use tonic::{Code, Request as Call};

use fake::{Act, FakeHelper, Greeting, done, status, welcome};
use states::{POOL, Said, State, WORDS, pool};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md");

/// How the table begins in the page.
const HEAD: &str = "| state | `bulkheadctl doctor` | pod | CSINode |\n|---|---|---|---|\n";

const VOLUME: &str = "pvc-1";

fn helper(said: Said) -> FakeHelper {
    let refused = |kind| Act::Answer(Err(Error::new(kind, WORDS)));
    let size = (1 << 30).try_into().unwrap();
    let fake = FakeHelper::stopped(move |request| match (request, said.clone()) {
        (Request::PoolStatus { .. }, Said { pool: Ok(conditions), .. }) => {
            let conditions = conditions.try_into().unwrap();
            Act::Answer(Ok(Reply::Pool(PoolStatus { conditions, ..status(1 << 40) })))
        }
        (Request::Usage { .. }, Said { volume: Ok(condition), .. }) => {
            let kind = VolumeKind::Filesystem { sparse: false, mode: 0o755.try_into().unwrap() };
            Act::Answer(Ok(Reply::Usage(Usage {
                pool: pool(),
                spec: VolumeSpec { size, kind, name_hash: NameHash([0; 32]) },
                used_bytes: None,
                available_bytes: None,
                used_inodes: None,
                available_inodes: None,
                targets: 1,
                condition,
            })))
        }
        (Request::PoolStatus { .. }, Said { pool: Err(kind), .. })
        | (Request::Usage { .. }, Said { volume: Err(kind), .. }) => refused(kind),
        (Request::List { after, .. }, _) => {
            let volume = VOLUME.parse().unwrap();
            let listed = Listed { volume, pool: pool(), size, block: false, targets: 1 };
            let page = if after.is_none() { vec![listed] } else { Vec::new() };
            Act::Answer(Ok(Reply::Volumes(page.try_into().unwrap())))
        }
        _ => done(),
    });
    fake.greet_with(Greeting::Welcome(Box::new(welcome(&[POOL]))));
    fake
}

/// The volumes, once all is known that the helper says.
async fn known(fake: &FakeHelper, state: &State) -> Volumes {
    let volumes = Volumes::new(Helper::new(fake.path()));
    let is_absent = matches!(state, State::Of(PoolCondition::Absent(_)));
    let volumes = if is_absent { volumes.with_optional_pools([pool()], Unseen::NotNeeded) } else { volumes };
    let watched = volumes.clone();
    let watching = tokio::spawn(async move { watched.watch_health().await });
    let begun = Instant::now();
    let is_known = || {
        let health = volumes.health();
        let health = health.borrow();
        health.are_pools_known && (!state.fails_volumes() || !health.volumes.is_empty())
    };
    while !is_known() {
        assert!(begun.elapsed() < fake::PATIENCE, "{state:?}: {:?}", volumes.health().borrow());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    watching.abort();
    let _ = watching.await;
    volumes
}

/// The row of the table: what is told while this is so.
async fn row(state: &State) -> String {
    let mut fake = helper(state.said());
    fake.run();
    let volumes = known(&fake, state).await;
    state.find(&volumes, &VOLUME.parse().unwrap());
    if let State::Without(Ailment::HELPER_AWAY) = state {
        fake.kill().await;
    }
    let plugin = Plugin::new("bulkhead.csi.local".parse().unwrap(), "node-1".to_owned(), volumes.clone());
    // A kubelet measures volumes, and asks for their health besides.
    let volume_path = "/var/lib/kubelet/pods/0/volumes/kubernetes.io~csi/pvc-1/mount".to_owned();
    let measure = NodeGetVolumeStatsRequest { volume_id: VOLUME.to_owned(), volume_path, ..Default::default() };
    let _ = plugin.node_get_volume_stats(Call::new(measure)).await;
    let helper = Helper::new(fake.path());
    let inspector = Inspector { helper, volumes, agent: View::without_agent(), readiness: None };
    let [doctor, pod, node] = [doctor(&inspector, state).await, pod(&plugin).await, node(&plugin).await];
    format!("| {} | {doctor} | {pod} | {node} |\n", state.label())
}

async fn pod(plugin: &Plugin) -> String {
    let request = NodeGetVolumeHealthRequest { volume_id: VOLUME.to_owned(), ..Default::default() };
    match plugin.node_get_volume_health(Call::new(request)).await {
        Ok(answer) => {
            let health = answer.into_inner().volume_health.unwrap();
            cell(health.health_statuses.iter().map(|entry| format!("`{:?}`, `{}`", entry.status(), entry.reason)))
        }
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            "what it was".to_owned()
        }
    }
}

async fn node(plugin: &Plugin) -> String {
    let answer = plugin.node_get_storage_health(Call::new(NodeGetStorageHealthRequest::default())).await;
    let health = answer.unwrap().into_inner().backend_health;
    cell(health.iter().map(|entry| format!("`{:?}`, `{}`", entry.status(), entry.reason)))
}

async fn doctor(inspector: &Inspector, state: &State) -> String {
    let answer = inspector.diagnose(Call::new(DiagnoseRequest {})).await.unwrap().into_inner();
    let checks = answer.checks.into_iter().map(Check::from);
    let is_about = |check: &Check| match check.outcome {
        Outcome::Ok => false,
        Outcome::Note => check.name.starts_with("pool"),
        Outcome::Failed => true,
    };
    cell(checks.filter(is_about).map(|check| {
        let word = if check.outcome == Outcome::Failed { "FAILED" } else { "note" };
        format!("`{word}` {}", clause(&check, state))
    }))
}

/// The first clause of what is told of the state: the rest says what to do.
fn clause(check: &Check, state: &State) -> String {
    let told = match state {
        State::Of(condition) => {
            let told = condition.to_string();
            assert!(check.message.contains(&told), "{state:?}: {check:?}");
            told
        }
        // What keeps the frontend from it depends on the moment.
        State::Without(Ailment::HELPER_AWAY) => {
            return "[it cannot be reached](#between-the-frontend-and-the-helper)".to_owned();
        }
        State::Without(_) => check.message.clone(),
    };
    let end = [": ", "; "].iter().filter_map(|mark| told.find(mark)).min();
    told[..end.unwrap_or(told.len())].to_owned()
}

fn cell(told: impl Iterator<Item = String>) -> String {
    let told: Vec<_> = told.collect();
    if told.is_empty() { "—".to_owned() } else { told.join("; ") }
}

#[tokio::test]
async fn the_table_in_the_documentation_is_what_is_told_of_each_state() {
    let (mut table, mut seen) = (HEAD.to_owned(), BTreeMap::new());
    for state in State::all() {
        let row = row(&state).await;
        assert_eq!(seen.insert(state.label(), row.clone()), None, "two rows have one name");
        table += &row;
    }
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, after) = page.split_once(HEAD).expect("the page has the table");
    let end = after.find("\n\n").expect("the page goes on after the table") + 1;
    let made = format!("{before}{table}{}", &after[end..]);
    if std::env::var_os("BULKHEAD_WRITE_DOCS").is_some() {
        fs::write(PAGE, &made).unwrap();
    } else {
        assert_eq!(page, made, "set BULKHEAD_WRITE_DOCS=1 to write it");
    }
}
