//! The program itself: how it starts, registers, logs and stops.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_frontend::proto::csi::controller_client::ControllerClient;
use bulkhead_frontend::proto::csi::identity_client::IdentityClient;
use bulkhead_frontend::proto::csi::{CreateVolumeRequest, GetPluginInfoRequest, ProbeRequest};
use bulkhead_frontend::proto::registration::registration_client::RegistrationClient;
use bulkhead_frontend::proto::registration::{InfoRequest, RegistrationStatus};
use bulkhead_protocol::{Bytes, Reply, Request, Socket};
use rustix::net::{Shutdown, shutdown};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::Code;

use fake::{Act, FakeHelper, PATIENCE, creation, done, failure, no_volumes, size};
use mock_api::MockApi;
use program::{Frontend, address, channel, get};

/// A fake that hands over these two sockets, the second only at the second request.
fn fake_with_sockets(csi: UnixListener, registration: UnixListener) -> FakeHelper {
    let refused = AtomicBool::new(false);
    FakeHelper::start(move |request| match request {
        Request::Listen { socket: Socket::Csi } => {
            Act::Attach(Ok(Reply::Listening), vec![csi.try_clone().unwrap().into()])
        }
        Request::Listen { socket: Socket::Registration } => {
            if refused.swap(true, Ordering::SeqCst) {
                Act::Attach(Ok(Reply::Listening), vec![registration.try_clone().unwrap().into()])
            } else {
                failure(bulkhead_protocol::ErrorKind::Io(28))
            }
        }
        Request::List { .. } => no_volumes(),
        Request::Create { .. } => size(1 << 30),
        _ => done(),
    })
}

#[tokio::test]
async fn it_serves_registers_and_goes_on_whatever_the_kubelet_says() {
    let sockets = tempfile::tempdir().unwrap();
    let (csi, registration) = (sockets.path().join("csi.sock"), sockets.path().join("reg.sock"));
    let fake = fake_with_sockets(UnixListener::bind(&csi).unwrap(), UnixListener::bind(&registration).unwrap());
    let mut frontend = Frontend::start(&fake, &[]);
    // The kubelet's part: it asks for the identity, calls the CSI socket, and reports its decision.
    let mut kubelet = RegistrationClient::new(channel(&registration).await);
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "bulkhead.csi.local"));
    assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/bulkhead.csi.local/csi.sock");
    assert_eq!(info.supported_versions, ["1.0.0"]);
    let mut identity = IdentityClient::new(channel(&csi).await);
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    let refusal = RegistrationStatus { plugin_registered: false, error: "not today".to_owned() };
    kubelet.notify_registration_status(refusal).await.unwrap();
    let approval = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(approval).await.unwrap();
    identity.probe(ProbeRequest {}).await.unwrap();
    for told in ["not today", "registered with the kubelet"] {
        frontend.says(told).await;
    }
    let sockets: Vec<_> = fake.names().into_iter().filter(|name| name == "Listen").collect();
    assert_eq!(sockets.len(), 3, "the registration socket is requested again after a failure");
    // It stops although both clients are still connected, and leaves the helper's sockets in place.
    frontend.terminate();
    assert!(frontend.ended().await.success(), "{}", frontend.log());
    assert!(csi.exists() && registration.exists());
}

#[tokio::test]
async fn restarts_of_either_side_lose_no_socket() {
    let sockets = tempfile::tempdir().unwrap();
    let (csi, registration) = (sockets.path().join("csi.sock"), sockets.path().join("reg.sock"));
    let mut fake = fake_with_sockets(UnixListener::bind(&csi).unwrap(), UnixListener::bind(&registration).unwrap());
    let frontend = Frontend::start(&fake, &[]);
    let mut identity = IdentityClient::new(channel(&csi).await);
    identity.probe(ProbeRequest {}).await.unwrap();
    RegistrationClient::new(channel(&registration).await).get_info(InfoRequest {}).await.unwrap();
    let listened = |fake: &FakeHelper| fake.names().into_iter().filter(|name| name == "Listen").count();
    let asked = listened(&fake);
    fake.kill().await;
    fake.run();
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    assert_eq!(listened(&fake), asked, "sockets are not requested again from a restarted helper");
    // Until a killed frontend is back, calls wait in the socket that the helper keeps.
    drop(frontend);
    let waiting = tokio::spawn(async move {
        let mut identity = IdentityClient::new(channel(&csi).await);
        identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready
    });
    sleep(Duration::from_millis(200)).await;
    let _frontend = Frontend::start(&fake, &[]);
    assert_eq!(waiting.await.unwrap(), Some(true));
}

#[tokio::test]
async fn it_ends_when_its_socket_is_given_to_another() {
    let sockets = tempfile::tempdir().unwrap();
    let (csi, registration) = (sockets.path().join("csi.sock"), sockets.path().join("reg.sock"));
    let listener = UnixListener::bind(&csi).unwrap();
    let helpers = listener.try_clone().unwrap();
    let fake = fake_with_sockets(listener, UnixListener::bind(&registration).unwrap());
    let mut frontend = Frontend::start(&fake, &[]);
    let mut identity = IdentityClient::new(channel(&csi).await);
    identity.probe(ProbeRequest {}).await.unwrap();
    // What the helper does when another frontend asks for the socket.
    shutdown(&helpers, Shutdown::Both).unwrap();
    assert_eq!(frontend.ended().await.code(), Some(1));
    assert!(frontend.log().contains("another frontend asks for it"), "{}", frontend.log());
}

#[tokio::test]
async fn the_registration_socket_is_requested_again_when_it_was_shut_down() {
    let sockets = tempfile::tempdir().unwrap();
    let (csi, registration) = (sockets.path().join("csi.sock"), sockets.path().join("reg.sock"));
    let csi_listener = UnixListener::bind(&csi).unwrap();
    let (path, current) = (registration.clone(), Arc::new(Mutex::new(UnixListener::bind(&registration).unwrap())));
    let shared = Arc::clone(&current);
    let fake = FakeHelper::start(move |request| match request {
        Request::Listen { socket } => {
            let listener = match socket {
                Socket::Csi => csi_listener.try_clone().unwrap(),
                Socket::Registration => shared.lock().unwrap().try_clone().unwrap(),
            };
            Act::Attach(Ok(Reply::Listening), vec![listener.into()])
        }
        Request::List { .. } => no_volumes(),
        _ => done(),
    });
    let frontend = Frontend::start(&fake, &[]);
    RegistrationClient::new(channel(&registration).await).get_info(InfoRequest {}).await.unwrap();
    let old = {
        let mut current = current.lock().unwrap();
        fs::remove_file(&path).unwrap();
        std::mem::replace(&mut *current, UnixListener::bind(&path).unwrap())
    };
    shutdown(&old, Shutdown::Both).unwrap();
    frontend
        .says("cannot register with the kubelet yet: the listening socket is of no use any more: it was shut down")
        .await;
    RegistrationClient::new(channel(&registration).await).get_info(InfoRequest {}).await.unwrap();
    // The volumes in use were served all the time.
    IdentityClient::new(channel(&csi).await).probe(ProbeRequest {}).await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_too_large_is_refused_and_the_next_one_served() {
    let fake = FakeHelper::start(|_| no_volumes());
    let socket = fake.directory().join("own.sock");
    let _frontend = Frontend::start(&fake, &["--csi-endpoint", socket.to_str().unwrap()]);
    let channel = channel(&socket).await;
    let parameters = BTreeMap::from([("pool".to_owned(), "x".repeat(1 << 20))]);
    let call = CreateVolumeRequest { parameters, ..creation("v") };
    let refusal = ControllerClient::new(channel.clone()).create_volume(call).await.unwrap_err();
    assert_eq!(refusal.code(), Code::OutOfRange, "{refusal}");
    IdentityClient::new(channel).probe(ProbeRequest {}).await.unwrap();
}

/// How many calls of a client are served at a time, as `server.rs` has it.
const CALLS: usize = 32;

#[tokio::test]
async fn one_call_too_many_waits_at_the_client() {
    let (is_open, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let (is_open_now, later) = (Arc::clone(&is_open), Arc::clone(&opened));
    let fake = FakeHelper::start(move |request| match request {
        Request::Create { .. } if !is_open_now.load(Ordering::SeqCst) => {
            Act::Later(Arc::clone(&later), Ok(Reply::Size(Bytes::try_from(1 << 30).unwrap())))
        }
        Request::Create { .. } => size(1 << 30),
        _ => no_volumes(),
    });
    let socket = fake.directory().join("own.sock");
    let options = ["--csi-endpoint", socket.to_str().unwrap(), "--metrics-address", "127.0.0.1:0"];
    let frontend = Frontend::start(&fake, &options);
    let client = channel(&socket).await;
    // With an answer it has heard how many calls it may make at a time. Before, it may make more, and one is refused.
    IdentityClient::new(client.clone()).get_plugin_info(GetPluginInfoRequest {}).await.unwrap();
    let mut calls = JoinSet::new();
    for number in 0..=CALLS {
        let mut controller = ControllerClient::new(client.clone());
        calls.spawn(async move { controller.create_volume(creation(&format!("v-{number}"))).await });
    }
    // Each of them makes one request, and what is looked at from time to time may make one more for a moment.
    let begun = Instant::now();
    while requests_in_progress(&frontend).await < CALLS {
        assert!(begun.elapsed() < PATIENCE, "{} calls came", requests_in_progress(&frontend).await);
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(500)).await;
    assert_eq!(requests_in_progress(&frontend).await, CALLS);
    let other = IdentityClient::new(channel(&socket).await).get_plugin_info(GetPluginInfoRequest {}).await;
    assert_eq!(other.unwrap().into_inner().name, "bulkhead.csi.local", "another client is served all the same");
    is_open.store(true, Ordering::SeqCst);
    opened.notify_waiters();
    while let Some(made) = calls.join_next().await {
        made.unwrap().unwrap();
    }
}

/// Returns how many requests of the frontend to the helper have no answer yet.
async fn requests_in_progress(frontend: &Frontend) -> usize {
    let (_, metrics) = get(&address(frontend).await, "/metrics").await;
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix("bulkhead_helper_requests_in_progress "));
    values.next().unwrap().parse::<f64>().unwrap() as usize
}

#[tokio::test]
async fn its_own_endpoint_is_made_and_removed() {
    let fake = FakeHelper::start(|_| no_volumes());
    let socket = fake.directory().join("own.sock");
    // Left behind by a process that was killed.
    drop(UnixListener::bind(&socket).unwrap());
    let endpoint = format!("unix://{}", socket.display());
    let mut frontend = Frontend::start(&fake, &["--csi-endpoint", &endpoint]);
    let mut identity = IdentityClient::new(channel(&socket).await);
    identity.probe(ProbeRequest {}).await.unwrap();
    assert!(!fake.names().contains(&"Listen".to_owned()), "no socket is requested, and nothing is registered");
    frontend.terminate();
    assert!(frontend.ended().await.success());
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_file_in_the_endpoints_place_is_left_alone() {
    let fake = FakeHelper::start(|_| no_volumes());
    let file = fake.directory().join("precious");
    fs::write(&file, "data").unwrap();
    let mut frontend = Frontend::start(&fake, &["--csi-endpoint", file.to_str().unwrap()]);
    assert_eq!(frontend.ended().await.code(), Some(1));
    assert!(frontend.log().contains("not a socket"), "{}", frontend.log());
    assert_eq!(fs::read(&file).unwrap(), b"data");
}

#[tokio::test]
async fn it_waits_for_the_helper_and_says_so() {
    let mut fake = FakeHelper::stopped(|_| no_volumes());
    let socket = fake.directory().join("own.sock");
    let mut frontend = Frontend::start(&fake, &["--csi-endpoint", socket.to_str().unwrap()]);
    frontend.says("waiting for the privileged helper").await;
    sleep(Duration::from_millis(400)).await;
    let log = frontend.log();
    assert!(log.contains("helper.sock"), "{log}");
    assert_eq!(log.matches("waiting for").count(), 1, "a reason is logged once: {log}");
    assert!(!socket.exists(), "nothing is served before the helper is up");
    fake.run();
    let mut identity = IdentityClient::new(channel(&socket).await);
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    frontend.terminate();
    assert!(frontend.ended().await.success());
}

#[tokio::test]
async fn it_ends_while_it_waits_for_the_helper() {
    let fake = FakeHelper::stopped(|_| no_volumes());
    let mut frontend = Frontend::start(&fake, &[]);
    // By then it handles signals.
    frontend.says("connecting to the privileged helper").await;
    frontend.terminate();
    assert!(frontend.ended().await.success());
}

#[tokio::test]
async fn a_probe_tells_whether_the_helper_answers() {
    let mut fake = FakeHelper::stopped(|_| no_volumes());
    let mut probe = Frontend::start(&fake, &["--probe"]);
    assert_eq!(probe.ended().await.code(), Some(1));
    assert!(probe.log().contains("cannot connect to the privileged helper"), "{}", probe.log());
    fake.run();
    assert!(Frontend::start(&fake, &["--probe"]).ended().await.success());
}

#[tokio::test]
async fn calls_are_logged_and_secrets_are_not() {
    let fake = FakeHelper::start(|request| match request {
        Request::Create { .. } => size(1 << 30),
        _ => no_volumes(),
    });
    let socket = fake.directory().join("own.sock");
    let options = ["--csi-endpoint", socket.to_str().unwrap(), "--log-format", "json", "--log-level", "trace"];
    let frontend = Frontend::start(&fake, &options);
    let mut controller = ControllerClient::new(channel(&socket).await);
    let secret = || BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
    let request = CreateVolumeRequest { secrets: secret(), ..creation("pvc-1") };
    controller.create_volume(request.clone()).await.unwrap();
    let refused = CreateVolumeRequest { parameters: BTreeMap::from([("x".to_owned(), "y".to_owned())]), ..request };
    controller.create_volume(refused).await.unwrap_err();
    // The log is written a moment after the call is answered.
    frontend.says("INVALID_ARGUMENT").await;
    let log = frontend.log();
    assert!(!log.contains("hunter2") && !log.contains("password"), "{log}");
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let calls: Vec<_> = lines.iter().filter(|line| line["rpc"] == "CreateVolume").collect();
    let told = |index: usize| (calls[index]["code"].as_str().unwrap(), calls[index]["volume"].as_str().unwrap());
    assert_eq!(told(0), ("OK", "pvc-1"));
    assert_eq!(told(1), ("INVALID_ARGUMENT", "pvc-1"));
    assert!(calls.iter().all(|call| call["microseconds"].is_u64()));
}

#[test]
fn nonsense_on_the_command_line_is_refused() {
    for options in [
        vec!["--node-id", "n"],
        vec!["--helper-socket", "/x"],
        vec!["--helper-socket", "/x", "--node-id", ""],
        vec!["--helper-socket", "/x", "--node-id", "n", "--csi-endpoint", "tcp://localhost:1"],
        vec!["--helper-socket", "/x", "--node-id", "n", "--log-format", "xml"],
        vec!["--helper-socket", "/x", "--node-id", "n", "--log-level", "loud"],
        vec!["--helper-socket", "/x", "--node-id", "n", "stray"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_bulkhead-frontend")).args(&options).env_clear().output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{options:?}");
    }
}

#[tokio::test]
async fn it_is_confined_and_reaches_its_api_server_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let csi = directory.path().join("csi.sock");
    let api = MockApi::start(directory.path(), Vec::new(), |_, _| None).await;
    let kubeconfig = api.kubeconfig().display().to_string();
    let registration = UnixListener::bind(directory.path().join("reg.sock")).unwrap();
    let fake = fake_with_sockets(UnixListener::bind(&csi).unwrap(), registration);
    let frontend = Frontend::start(&fake, &["--kubeconfig", &kubeconfig, "--namespace", "storage"]);
    frontend.says("working for Kubernetes").await;
    frontend.says("confined by seccomp").await;
    for thread in fs::read_dir(format!("/proc/{}/task", frontend.child.id())).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("\nNoNewPrivs:\t1\n") && status.contains("\nSeccomp:\t2\n"), "{status}");
    }
    drop(frontend);
    let open = Frontend::start(&fake, &["--sandbox", "off"]);
    open.says("this process is not confined: --sandbox=off").await;
}
