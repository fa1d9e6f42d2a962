//! `bulkheadctl`, against the real services and a scripted helper.

#[allow(dead_code, reason = "each suite uses a part of it")]
#[path = "../../tests/fake/mod.rs"]
mod fake;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead_frontend::server::{self, Shutdown};
use bulkhead_protocol::{
    BlockSize, Bytes, Condition, Error, ErrorKind, HIGHEST_VERSION, Listed, NameHash, PoolStatus, Reply, Request,
    Usage, VolumeKind, VolumeSpec, Welcome,
};
use serde_json::Value;

use fake::{Act, FakeHelper, Greeting, done, failure, no_copies, no_volumes, size, welcome};

/// A frontend on a socket of its own.
fn serve(fake: &FakeHelper) -> PathBuf {
    let path = fake.directory().join("csi.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let routes = fake.plugin().routes().add_service(fake.inspector().service());
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
    let (available, largest_volume) = (3 << 30, 2 << 30);
    Act::Answer(Ok(Reply::Pool(PoolStatus { available, largest_volume, ..fake::status(4 << 30) })))
}

#[tokio::test]
async fn volumes_come_and_go() {
    let fake = FakeHelper::start(|request| match request {
        Request::Create { spec, .. } => size(spec.size.get()),
        request => of_a_pool_with_one_volume(request),
    });
    let socket = serve(&fake);
    let target = "/var/lib/kubelet/x";
    for (arguments, told) in [
        (vec!["volume", "create", "pvc-1", "--size", "10Mi", "--block", "--sparse"], "pvc-1 has 10 MiB\n".to_owned()),
        (vec!["volume", "publish", "pvc-1", target, "--block"], format!("pvc-1 is published at {target}\n")),
        (vec!["volume", "delete", "pvc-1", "--yes"], "pvc-1 has been deleted\n".to_owned()),
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
    assert_eq!(text(&table.stdout), "available:        3 GiB\nlargest volume:   2 GiB\nsmallest volume:  1 MiB\n");
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
    assert_eq!(
        text(&run(socket.clone(), &["volume", "list"]).await.stdout),
        "ID  POOL  KIND  SIZE  USED  TARGETS  CONDITION\n"
    );
    assert_eq!(text(&run(socket, &["volume", "list", "--json"]).await.stdout), "[]\n");
}

#[tokio::test]
async fn a_failure_is_told_with_its_code_and_ends_with_one() {
    let fake = FakeHelper::start(|request| match request {
        Request::Delete { .. } => failure(ErrorKind::InUse),
        request => of_a_pool_with_one_volume(request),
    });
    let socket = serve(&fake);
    let output = run(socket.clone(), &["volume", "delete", "pvc-1", "--yes"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "bulkheadctl: FAILED_PRECONDITION: scripted\n");
    assert!(output.stdout.is_empty());
    let output = run(socket, &["volume", "delete", "pvc-1", "--yes", "--json"]).await;
    let json: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(json["error"]["code"], "FAILED_PRECONDITION");
    assert!(output.stdout.is_empty() && json["error"]["message"].as_str().unwrap().ends_with("scripted"), "{json}");
}

/// Text that a tenant has chosen, as far as the helper or an orchestrator lets it through.
#[tokio::test]
async fn a_terminal_obeys_no_text_of_others() {
    let fake = FakeHelper::start(|_| {
        let message = "\u{1b}[2J\u{9b}31m\nFAILED  helper\u{202e}";
        Act::Answer(Err(Error::new(ErrorKind::Invalid, message)))
    });
    let socket = serve(&fake);
    for arguments in [&["volume", "show", "pvc-1"][..], &["--json", "volume", "show", "pvc-1"], &["doctor"]] {
        let output = run(socket.clone(), arguments).await;
        let told = text(&output.stdout) + &text(&output.stderr);
        assert!(told.contains("[2J"), "{told:?}");
        assert!(!told.contains(['\u{1b}', '\u{9b}', '\u{202e}']) && !told.contains("\nFAILED  helper"), "{told:?}");
    }
}

#[tokio::test]
async fn a_frontend_that_is_not_there_is_told_as_such() {
    let output = run("/nonexistent/csi.sock".into(), &["volume", "list"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("/nonexistent/csi.sock") && told.contains("bulkhead-privhelper makes it"), "{told}");
}

/// As the helper's socket is while the frontend is stopped: it is listened on, and nobody accepts.
#[tokio::test]
async fn a_frontend_that_is_stopped_is_told_in_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let _held = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let begun = Instant::now();
    let (output, doctor) = tokio::join!(run(socket.clone(), &["volume", "list"]), run(socket, &["doctor"]));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let told = text(&output.stderr);
    assert!(told.contains("within 20 seconds") && told.contains("bulkhead-frontend is stopped"), "{told}");
    let doctor = text(&doctor.stdout);
    assert!(doctor.starts_with("FAILED  frontend  nobody has answered"), "{doctor}");
}

#[tokio::test]
async fn the_right_program_is_blamed() {
    let mut fake = FakeHelper::start(of_a_pool_with_one_volume);
    let csi = serve(&fake);
    let told = |variable: &'static str, socket: PathBuf| async move {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
        command.arg("doctor").env_clear().env(variable, socket);
        text(&tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap().stdout)
    };
    let swapped = told("BULKHEAD_ENDPOINT", fake.path().to_owned()).await;
    assert!(
        swapped.contains("is the socket of bulkhead-privhelper") && swapped.contains("--helper-socket"),
        "{swapped}"
    );
    let swapped = told("BULKHEAD_HELPER_SOCKET", csi).await;
    assert!(swapped.starts_with("FAILED  helper") && swapped.contains("give it with --endpoint"), "{swapped}");
    fake.kill().await;
    let away = told("BULKHEAD_HELPER_SOCKET", fake.path().to_owned()).await;
    assert!(away.starts_with("FAILED  helper") && away.contains("is bulkhead-privhelper running"), "{away}");
    // Another user's connection is closed as soon as it is accepted.
    let of_another_user = fake.directory().join("other.sock");
    let mut listener = tokio_seqpacket::UnixSeqpacketListener::bind(&of_another_user).unwrap();
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });
    let refused = told("BULKHEAD_HELPER_SOCKET", of_another_user).await;
    assert!(refused.contains("it serves a single user") && refused.contains("--allow-uid"), "{refused}");
    let dead = fake.directory().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let refused = told("BULKHEAD_ENDPOINT", dead).await;
    assert!(
        refused.contains("bulkhead-privhelper is not running, or bulkhead-frontend has not run since"),
        "{refused}"
    );
}

fn of_a_pool_with_one_volume(request: &Request) -> Act {
    let (volume, in_pool) = ("pvc-1".parse().unwrap(), "default".parse().unwrap());
    let size = Bytes::try_from(1 << 30).unwrap();
    match request {
        Request::List { after: None, .. } => {
            let listed = Listed { volume, pool: in_pool, size, block: true, targets: 2 };
            Act::Answer(Ok(Reply::Volumes(vec![listed].try_into().unwrap())))
        }
        Request::List { .. } => no_volumes(),
        Request::Usage { .. } => {
            let kind = VolumeKind::Image { sparse: true, block_size: BlockSize::B4096 };
            Act::Answer(Ok(Reply::Usage(Usage {
                pool: in_pool,
                spec: VolumeSpec { size, kind, name_hash: NameHash([0; 32]) },
                used_bytes: Some(914 << 20),
                available_bytes: Some(110 << 20),
                used_inodes: None,
                available_inodes: None,
                targets: 2,
                condition: Some(Condition::ImageSize { found: 914 << 20, recorded: 1 << 30 }),
            })))
        }
        Request::PoolStatus { .. } => pool(request),
        _ => done(),
    }
}

#[tokio::test]
async fn a_filesystem_in_an_image_is_made_and_its_room_is_told() {
    let fake = FakeHelper::start(|request| match request {
        Request::Create { spec, .. } => size(spec.size.get()),
        request => {
            let Act::Answer(Ok(Reply::Usage(usage))) = of_a_pool_with_one_volume(request) else {
                return no_copies(request).unwrap_or_else(done);
            };
            let kind = VolumeKind::Filesystem { sparse: false, mode: 0o755.try_into().unwrap() };
            let spec = VolumeSpec { size: Bytes::try_from(512 << 20).unwrap(), kind, ..usage.spec };
            let (used_bytes, available_bytes) = (Some(18 << 20), Some(430 << 20));
            let counted = Usage { spec, used_bytes, available_bytes, condition: None, ..usage };
            Act::Answer(Ok(Reply::Usage(Usage { used_inodes: Some(4), available_inodes: Some(262_140), ..counted })))
        }
    });
    fake.greet_with(Greeting::Welcome(Box::new(Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) })));
    let socket = serve(&fake);
    let made =
        run(socket.clone(), &["volume", "create", "pvc-1", "--size", "300Mi", "--backing", "image", "--sparse"]).await;
    assert_eq!(text(&made.stdout), "pvc-1 has 300 MiB\n", "{}", text(&made.stderr));
    let shown = text(&run(socket.clone(), &["volume", "show", "pvc-1"]).await.stdout);
    for line in [
        "kind:              filesystem\n",
        "size:              512 MiB, of which 448 MiB are room for files\n",
        "inodes:            4 of 262144 used\n",
        "settings:          backing=image, dirMode=0755, sparse=false\n",
    ] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    for other in [["--block", "--backing=image"], ["--sparse", "--pool=default"]] {
        let refused = run(socket.clone(), &[["volume", "create", "x"].as_slice(), &other].concat()).await;
        assert_eq!(refused.status.code(), Some(2), "{other:?}");
    }
}

#[tokio::test]
async fn volumes_and_pools_are_listed_with_their_condition() {
    let fake = FakeHelper::start(of_a_pool_with_one_volume);
    let socket = serve(&fake);
    let volumes = text(&run(socket.clone(), &["volume", "list"]).await.stdout);
    let expected = "ID     POOL     KIND   SIZE   USED     TARGETS  CONDITION\n\
                    pvc-1  default  block  1 GiB  914 MiB  2        abnormal\n\
                    pvc-1: the volume's image is 110 MiB shorter than";
    assert!(volumes.starts_with(expected), "{volumes}");
    let json = run(socket.clone(), &["volume", "list", "--json"]).await;
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json[0]["bytes"], &json[0]["usedBytes"]), (&(1 << 30).into(), &(914 << 20).into()));
    assert_eq!((&json[0]["abnormal"], &json[0]["claim"]), (&true.into(), &Value::Null));
    let shown = text(&run(socket.clone(), &["volume", "show", "pvc-1"]).await.stdout);
    assert!(shown.contains("settings:          blockSize=4096, sparse=true\n"), "{shown}");
    assert!(shown.contains("targets:           2 (their paths cannot be seen from here)\n"), "{shown}");
    assert!(shown.contains("claim:             unknown: no storage agent runs on this node\n"), "{shown}");
    let pools = text(&run(socket, &["pool", "list"]).await.stdout);
    let expected = "POOL     TOTAL  AVAILABLE  PROMISED  USED     FREE-INODES  VOLUMES  EMPTYING  CONDITION\n\
                    default  4 GiB  3 GiB      0 B       914 MiB  -            0        0         healthy\n";
    assert_eq!(pools, expected, "a helper of an earlier release knows no inodes");
}

#[tokio::test]
async fn inodes_that_run_out_are_told_before_they_have() {
    let free = Arc::new(AtomicU64::new(999));
    let now = Arc::clone(&free);
    let fake = FakeHelper::start(move |request| match request {
        Request::PoolCounts { .. } => fake::counts(0, 0, (1000, now.load(Ordering::SeqCst))),
        request => of_a_pool_with_one_volume(request),
    });
    fake.greet_with(Greeting::Welcome(Box::new(Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) })));
    let socket = serve(&fake);
    let pools = text(&run(socket.clone(), &["pool", "list"]).await.stdout);
    assert!(
        pools.contains("default  4 GiB  3 GiB      0 B       914 MiB  99%          0        0         healthy"),
        "{pools}"
    );
    let json = run(socket.clone(), &["pool", "list", "--json"]).await;
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json[0]["inodes"], &json[0]["freeInodes"]), (&1000.into(), &999.into()));
    for (now, told) in [
        (50, "ok    pool default  3 GiB of 4 GiB available, 0 volumes\n"),
        (49, "note  pool default  3 GiB of 4 GiB available, 0 volumes; only 49 of the 1000 inodes"),
    ] {
        free.store(now, Ordering::SeqCst);
        let doctor = text(&run(socket.clone(), &["doctor"]).await.stdout);
        assert!(doctor.contains(told), "{doctor}");
    }
}

#[tokio::test]
async fn conditions_of_a_pool_are_told_with_what_to_do() {
    let fake = FakeHelper::start(|request| match request {
        Request::PoolStatus { .. } => {
            let overpromised = Condition::Overpromised { promised: 958_246_912, limit: 512 << 20 };
            let conditions = vec![Condition::Unconfined, overpromised].try_into().unwrap();
            Act::Answer(Ok(Reply::Pool(PoolStatus { conditions, ..fake::status(1 << 30) })))
        }
        _ => no_volumes(),
    });
    let socket = serve(&fake);
    let json = run(socket.clone(), &["pool", "list", "--json"]).await;
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let conditions: Vec<_> =
        json[0]["conditions"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(conditions[0].contains("--seccomp=log") && conditions[1].starts_with("913.9 MiB are promised"), "{json}");
    assert_eq!(json[0]["conditionNames"], serde_json::json!(["unconfined", "overpromised"]));
    let table = text(&run(socket.clone(), &["pool", "list"]).await.stdout);
    let mut lines = table.lines().skip(1);
    assert!(lines.next().unwrap().ends_with("  unconfined,overpromised"), "{table}");
    assert!(lines.next().unwrap().starts_with("default: the helper is not confined"), "{table}");
    let doctor = run(socket, &["doctor"]).await;
    assert_eq!(doctor.status.code(), Some(1));
    assert!(
        text(&doctor.stdout).contains("FAILED  pool default  1 GiB of 1 GiB available, 0 volumes; the helper is not")
    );
}

#[tokio::test]
async fn a_deletion_without_a_terminal_needs_confirmation() {
    let fake = FakeHelper::start(of_a_pool_with_one_volume);
    let output = run(serve(&fake), &["volume", "delete", "pvc-1"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    let asked =
        "This deletes volume pvc-1 (1 GiB) and all its data. Whether an orchestrator still needs it is not known";
    assert!(told.contains(asked) && told.contains("--yes"), "{told}");
    assert!(!fake.names().contains(&"Delete".to_owned()));
}

#[tokio::test]
async fn beside_the_helper_a_deletion_needs_force_because_nobody_knows_claims() {
    let fake = FakeHelper::start(of_a_pool_with_one_volume);
    let run = |arguments: &'static [&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
        command.args(arguments).env_clear().env("BULKHEAD_HELPER_SOCKET", fake.path());
        async move { tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap() }
    };
    let refused = run(&["volume", "delete", "pvc-1", "--yes"]).await;
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(told.contains("cannot be told") && told.contains("was not asked") && told.contains("--force"), "{told}");
    assert!(!fake.names().contains(&"Delete".to_owned()));
    assert!(run(&["volume", "delete", "pvc-1", "--yes", "--force"]).await.status.success());
    assert!(fake.names().contains(&"Delete".to_owned()));
}

#[tokio::test]
async fn what_nothing_counts_is_not_zero() {
    let fake = FakeHelper::start(|request| match of_a_pool_with_one_volume(request) {
        Act::Answer(Ok(Reply::Usage(usage))) => {
            let unknown = Usage { used_bytes: None, available_bytes: None, ..usage };
            Act::Answer(Ok(Reply::Usage(unknown)))
        }
        other => other,
    });
    let socket = serve(&fake);
    let stats = ["volume", "stats", "pvc-1", "/var/lib/kubelet/x"];
    let output = run(socket.clone(), &[&stats[..], &["--json"]].concat()).await;
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["bytes"], serde_json::json!({ "total": 1 << 30, "used": null, "available": null }));
    assert!(text(&run(socket, &stats).await.stdout).contains("bytes:      1 GiB total\n"));
}

#[tokio::test]
async fn unpublishing_what_is_not_published_is_told_as_such() {
    let known = FakeHelper::start(of_a_pool_with_one_volume);
    let target = "/var/lib/kubelet/x";
    let output = run(serve(&known), &["volume", "unpublish", "pvc-1", target]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("pvc-1 was not published at /var/lib/kubelet/x"), "{output:?}");
    let unknown = FakeHelper::start(|_| failure(ErrorKind::NotFound));
    let output = run(serve(&unknown), &["volume", "unpublish", "pvc-2", target]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "there is no volume pvc-2: nothing was published at /var/lib/kubelet/x\n");
}

#[tokio::test]
async fn orphans_are_known_to_an_agent_only() {
    let fake = FakeHelper::start(of_a_pool_with_one_volume);
    let output = run(serve(&fake), &["volume", "orphans"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("FAILED_PRECONDITION") && told.contains("kubectl get pv"), "{told}");
}

#[tokio::test]
async fn the_doctor_says_what_fails_and_what_to_do() {
    let mut fake = FakeHelper::start(of_a_pool_with_one_volume);
    let socket = serve(&fake);
    let well = run(socket.clone(), &["doctor"]).await;
    let told = text(&well.stdout);
    assert!(well.status.success(), "{told}");
    assert!(told.contains("ok    pool default  3 GiB of 4 GiB available, 0 volumes\n"), "{told}");
    assert!(told.contains("the frontend is release"), "the helper's release is not the frontend's: {told}");
    fake.kill().await;
    let ill = run(socket, &["doctor", "--json"]).await;
    assert_eq!(ill.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&ill.stdout).unwrap();
    assert_eq!(json["healthy"], false);
    let helper = json["checks"].as_array().unwrap().iter().find(|check| check["name"] == "helper").unwrap();
    assert_eq!(helper["outcome"], "failed");
    assert!(helper["message"].as_str().unwrap().contains("is bulkhead-privhelper running"), "{helper}");
}

#[tokio::test]
async fn the_doctor_works_without_a_frontend() {
    let output = run("/nonexistent/csi.sock".into(), &["doctor"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout);
    assert!(told.starts_with("FAILED  frontend  there is no socket /nonexistent/csi.sock"), "{told}");
}

#[tokio::test]
async fn shells_complete_and_manual_pages_are_written() {
    let nowhere = PathBuf::from("/nonexistent/csi.sock");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(nowhere.clone(), &["completion", shell]).await;
        assert!(script.status.success() && text(&script.stdout).contains("orphans"), "{shell}");
    }
    let directory = tempfile::tempdir().unwrap();
    let written = run(nowhere, &["man", directory.path().to_str().unwrap()]).await;
    assert!(written.status.success(), "{}", text(&written.stderr));
    for page in ["bulkheadctl.1", "bulkheadctl-volume-delete.1", "bulkheadctl-doctor.1"] {
        let page = std::fs::read_to_string(directory.path().join(page)).unwrap();
        for section in ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"] {
            assert!(page.contains(&format!(".SH {section}")) || page.contains(&format!(".SH \"{section}\"")), "{page}");
        }
    }
}

#[tokio::test]
async fn beside_the_helper_alone_it_needs_no_frontend() {
    let fake = FakeHelper::start(of_a_pool_with_one_volume);
    let run = |arguments: &'static [&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
        command.args(arguments).env_clear().env("BULKHEAD_HELPER_SOCKET", fake.path());
        async move { tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap() }
    };
    let volumes = run(&["volume", "list"]).await;
    assert!(volumes.status.success(), "{}", text(&volumes.stderr));
    assert!(text(&volumes.stdout).contains("pvc-1  default  block  1 GiB"));
    let doctor = text(&run(&["doctor"]).await.stdout);
    assert!(doctor.contains("note  API server    not known here"), "{doctor}");
    // Volumes without an object are known to the agent alone, which is in another process.
    let orphans = run(&["volume", "orphans"]).await;
    let told = text(&orphans.stderr);
    assert_eq!(orphans.status.code(), Some(1));
    assert!(told.contains("FAILED_PRECONDITION") && told.contains("see `kubectl bulkhead orphans`"), "{told}");
}
