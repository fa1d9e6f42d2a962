//! `bulkheadctl`, against the real services and a scripted helper.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;

use std::path::PathBuf;
use std::process::{Command, Output};

use bulkhead_frontend::server::{self, Shutdown};
use bulkhead_protocol::{ErrorKind, PoolStatus, QuotaMode, Reply, Request, UpTo};
use serde_json::Value;

use fake::{Act, FakeHelper, done, failure, no_volumes, size};

/// A frontend on a socket of its own.
fn serve(fake: &FakeHelper) -> PathBuf {
    let path = fake.directory().join("csi.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let routes = fake.plugin().routes();
    tokio::spawn(async move { server::serve(listener, routes, &Shutdown::default()).await });
    path
}

async fn run(socket: PathBuf, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
    command.args(arguments).env_clear().env("BULKHEAD_ENDPOINT", socket);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn pool(_: &Request) -> Act {
    Act::Answer(Ok(Reply::Pool(PoolStatus {
        quota: QuotaMode::Enforced,
        total: 4 << 30,
        available: 3 << 30,
        largest_volume: 2 << 30,
        promised: 0,
        volumes: 0,
        emptying: 0,
        conditions: UpTo::default(),
    })))
}

#[tokio::test]
async fn volumes_come_and_go() {
    let fake = FakeHelper::start(|request| match request {
        Request::Create { spec, .. } => size(spec.size.get()),
        _ => done(),
    });
    let socket = serve(&fake);
    let target = "/var/lib/kubelet/x";
    for (arguments, told) in [
        (vec!["volume", "create", "pvc-1", "--size", "10Mi", "--block", "--sparse"], "pvc-1 has 10Mi\n".to_owned()),
        (vec!["volume", "publish", "pvc-1", target, "--block"], format!("pvc-1 is published at {target}\n")),
        (vec!["volume", "delete", "pvc-1"], "pvc-1 has been deleted\n".to_owned()),
    ] {
        let output = run(socket.clone(), &arguments).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), told);
    }
    assert_eq!(fake.names(), ["Create", "LoopAttach", "MakeDevice", "Usage", "Delete"]);
}

#[tokio::test]
async fn deleting_a_volume_that_does_not_exist_says_that_there_was_none() {
    let fake = FakeHelper::start(|_| failure(ErrorKind::NotFound));
    let socket = serve(&fake);
    let output = run(socket, &["volume", "delete", "pvc-1"]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "there was no volume pvc-1\n");
}

#[tokio::test]
async fn tables_for_people_and_json_for_machines() {
    let fake = FakeHelper::start(pool);
    let socket = serve(&fake);
    let table = run(socket.clone(), &["capacity"]).await;
    assert_eq!(text(&table.stdout), "available:        3Gi\nlargest volume:   2Gi\nsmallest volume:  1Mi\n");
    let json = run(socket.clone(), &["--json", "capacity"]).await;
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["availableBytes"], 3_u64 << 30);
    let node = run(socket, &["node", "info", "--json"]).await;
    let node: Value = serde_json::from_slice(&node.stdout).unwrap();
    assert_eq!((&node["node"], &node["ready"]), (&"node-1".into(), &true.into()));
}

#[tokio::test]
async fn an_empty_list_is_a_list() {
    let fake = FakeHelper::start(|_| no_volumes());
    let socket = serve(&fake);
    assert_eq!(text(&run(socket.clone(), &["volume", "list"]).await.stdout), "ID  SIZE\n");
    assert_eq!(text(&run(socket, &["volume", "list", "--json"]).await.stdout), "[]\n");
}

#[tokio::test]
async fn a_failure_is_told_with_its_code_and_ends_with_one() {
    let fake = FakeHelper::start(|_| failure(ErrorKind::InUse));
    let socket = serve(&fake);
    let output = run(socket, &["volume", "delete", "pvc-1"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "bulkheadctl: FAILED_PRECONDITION: scripted\n");
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn a_frontend_that_is_not_there_is_told_as_such() {
    let output = run("/nonexistent/csi.sock".into(), &["volume", "list"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("/nonexistent/csi.sock") && told.contains("is bulkhead-frontend serving there"), "{told}");
}
