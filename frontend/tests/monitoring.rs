//! Metrics and probes of the program itself, as a kubelet and Prometheus see them.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::collections::{BTreeSet, VecDeque};
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bulkhead_frontend::proto::csi::controller_client::ControllerClient;
use bulkhead_frontend::proto::csi::identity_client::IdentityClient;
use bulkhead_frontend::proto::csi::{CreateSnapshotRequest, ProbeRequest};
use bulkhead_frontend::proto::registration::RegistrationStatus;
use bulkhead_frontend::proto::registration::registration_client::RegistrationClient;
use bulkhead_protocol::{
    Condition, ErrorKind, HIGHEST_VERSION, Origin, PoolStatus, Reply, Request, Snapshot, Socket, VolumeId, Welcome,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tonic::Code;

use fake::{Act, FakeHelper, Greeting, PATIENCE, creation, done, failure, no_volumes, size, welcome};
use mock_api::{Fault, MockApi};
use program::{Frontend, address, ask, channel, get, median};

/// A helper, not started yet, that hands over two sockets, and the paths of these.
fn helper() -> (FakeHelper, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (csi, registration) = (directory.path().join("csi.sock"), directory.path().join("reg.sock"));
    let sockets = [UnixListener::bind(&csi).unwrap(), UnixListener::bind(&registration).unwrap()];
    let fake = FakeHelper::stopped(move |request| match request {
        Request::Listen { socket } => {
            // The directory lives as long as the helper does.
            let _ = &directory;
            let socket = &sockets[usize::from(*socket == Socket::Registration)];
            Act::Attach(Ok(Reply::Listening), vec![socket.try_clone().unwrap().into()])
        }
        Request::List { .. } => no_volumes(),
        Request::Create { .. } => size(1 << 30),
        Request::PoolCounts { .. } => {
            let (inodes, free_inodes, snapshots, extent_limit) = (65_536, 65_000, 3, 200_000);
            let (filesystem_limit, filesystems) = (0, 0);
            let snapshot_bytes = 3 << 20;
            let counts = Reply::Counts {
                filesystem_limit,
                filesystems,
                inodes,
                free_inodes,
                snapshots,
                extent_limit,
                snapshot_bytes,
            };
            Act::Answer(Ok(counts))
        }
        Request::CreateSnapshot { .. } => failure(ErrorKind::TooFragmented { extents: 250_000, limit: 200_000 }),
        Request::ListSnapshots { after: None, .. } => {
            let page = vec![snapshot("snap-1"), snapshot("snap-2")];
            Act::Answer(Ok(Reply::Snapshots(page.try_into().unwrap())))
        }
        Request::ListSnapshots { .. } => Act::Answer(Ok(Reply::Snapshots(Vec::new().try_into().unwrap()))),
        Request::PoolStatus { .. } => {
            let conditions = vec![Condition::Overpromised { promised: 9 << 30, limit: 8 << 30 }].try_into().unwrap();
            Act::Answer(Ok(Reply::Pool(PoolStatus { inode_size: 512, conditions, ..fake::status(33 << 30) })))
        }
        _ => done(),
    });
    (fake, csi, registration)
}

fn snapshot(id: &str) -> Snapshot {
    let source: VolumeId = "pvc-1".parse().unwrap();
    Snapshot {
        snapshot: id.parse().unwrap(),
        pool: "default".parse().unwrap(),
        size: (8 << 20).try_into().unwrap(),
        block: true,
        allocated: 4096,
        origin: Origin { source: source.clone(), family: source, copied: 1 },
    }
}

/// Waits until /readyz answers with this status and its report contains `part`.
async fn readyz(address: &str, status: u16, part: &str) {
    let begun = Instant::now();
    loop {
        let found = get(address, "/readyz").await;
        if found.0 == status && found.1.contains(part) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "not {status} with {part:?}: {found:?}");
        assert_eq!(get(address, "/healthz").await, (200, "ok\n".to_owned()), "it lives all the time");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn it_is_ready_only_while_helper_kubelet_and_api_server_are_there_and_says_what_is_missing() {
    let (mut fake, _, registration) = helper();
    let is_away = Arc::new(AtomicBool::new(true));
    let refusing = Arc::clone(&is_away);
    let api = MockApi::start(fake.directory(), Vec::new(), move |_, _| {
        let status = json!({ "kind": "Status", "status": "Failure", "code": 503, "message": "starting up" });
        refusing.load(Ordering::Relaxed).then_some(Fault::Refuse(503, status))
    })
    .await;
    let kubeconfig = api.kubeconfig().display().to_string();
    let options = ["--kubeconfig", &kubeconfig, "--namespace", "storage", "--metrics-address", "127.0.0.1:0"];
    let frontend = Frontend::start(&fake, &options);
    let address = address(&frontend).await;
    // It waits for its helper, and neither exits nor hides why.
    readyz(&address, 503, "[-]helper not ready: cannot connect to the privileged helper").await;
    fake.run();
    readyz(&address, 503, "[+]helper ok\n[+]csi-socket ok\n").await;
    readyz(&address, 503, "[-]agent not ready: reviewing the agent's own token failed at the API server: starting up")
        .await;
    is_away.store(false, Ordering::Relaxed);
    readyz(&address, 503, "[+]watch-persistentvolumeclaims ok\n").await;
    readyz(&address, 503, "[-]kubelet-registration not ready: the kubelet has not registered the driver yet").await;
    let mut kubelet = RegistrationClient::new(channel(&registration).await);
    let approval = RegistrationStatus { plugin_registered: true, error: String::new() };
    kubelet.notify_registration_status(approval).await.unwrap();
    readyz(&address, 200, "[+]kubelet-registration ok\n").await;
    frontend.says(" ready").await;

    fake.kill().await;
    readyz(&address, 503, "[-]helper not ready: ").await;
    fake.run();
    readyz(&address, 200, "\nready\n").await;
    is_away.store(true, Ordering::Relaxed);
    api.expire();
    readyz(&address, 503, "[-]watch-persistentvolumeclaims not ready: ").await;
    is_away.store(false, Ordering::Relaxed);
    readyz(&address, 200, "\nready\n").await;
    let refusal = RegistrationStatus { plugin_registered: false, error: "not today".to_owned() };
    kubelet.notify_registration_status(refusal).await.unwrap();
    readyz(
        &address,
        503,
        "[-]kubelet-registration not ready: the kubelet rejected the driver and will retry: not today",
    )
    .await;
}

/// The helper keeps the registration socket, so that the kubelet does not notice that a frontend is replaced.
#[tokio::test]
async fn a_frontend_that_takes_the_place_of_another_learns_that_it_is_registered() {
    let (mut fake, ..) = helper();
    fake.run();
    let api = MockApi::start(fake.directory(), Vec::new(), |_, _| None).await;
    api.register();
    let kubeconfig = api.kubeconfig().display().to_string();
    let options = ["--kubeconfig", &kubeconfig, "--namespace", "storage", "--metrics-address", "127.0.0.1:0"];
    let frontend = Frontend::start(&fake, &options);
    readyz(&address(&frontend).await, 200, "[+]kubelet-registration ok\n").await;
}

#[tokio::test]
async fn metrics_are_served_and_nothing_else() {
    let (mut fake, csi, _) = helper();
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let address = address(&frontend).await;
    // Only the API server could say whether the kubelet already knows the driver.
    readyz(&address, 200, "[+]kubelet-registration ok\n").await;
    let mut controller = ControllerClient::new(channel(&csi).await);
    controller.create_volume(creation("pvc-1")).await.unwrap();
    let (status, metrics) = get(&address, "/metrics").await;
    assert_eq!(status, 200);
    for expected in [
        "\nbulkhead_csi_call_duration_seconds_count{method=\"CreateVolume\",code=\"OK\"} 1\n",
        "\nbulkhead_helper_request_duration_seconds_count{request=\"create\",outcome=\"ok\"} 1\n",
        "\nbulkhead_build_info{version=\"",
        "\nbulkhead_ready{part=\"helper\"} 1",
        "\n# TYPE process_cpu_seconds_total counter\n",
        "\nprocess_open_fds ",
    ] {
        assert!(metrics.contains(expected), "{expected:?}: {metrics}");
    }
    assert!(!metrics.contains("pvc-1"), "{metrics}");
    assert_eq!(get(&address, "/").await.0, 404);
    assert_eq!(ask(&address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await.0, 405);
    // Silent clients cannot keep probes out.
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    assert_eq!(get(&address, "/healthz").await.0, 200);
}

#[tokio::test]
async fn snapshots_are_listed_and_their_refusals_counted_by_reason() {
    let (mut fake, csi, _) = helper();
    fake.greet_with(Greeting::Welcome(Box::new(Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) })));
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let address = address(&frontend).await;
    readyz(&address, 200, "[+]kubelet-registration ok\n").await;
    let mut controller = ControllerClient::new(channel(&csi).await);
    let (name, source_volume_id) = ("snap-3".to_owned(), "pvc-1".to_owned());
    let request = CreateSnapshotRequest { name, source_volume_id, ..CreateSnapshotRequest::default() };
    assert_eq!(controller.create_snapshot(request).await.unwrap_err().code(), Code::FailedPrecondition);
    let refused =
        "bulkhead_helper_request_duration_seconds_count{request=\"create-snapshot\",outcome=\"TooFragmented\"} 1\n";
    let (_, metrics) = get(&address, "/metrics").await;
    assert!(metrics.contains(refused), "{metrics}");
    let (status, page) = get(&address, "/snapshots?after=").await;
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let expected = ["snap-1", "snap-2"].map(|id| json!({ "snapshot": id, "pool": "default", "bytes": 4096 }));
    assert_eq!((status, page), (200, json!({ "snapshots": expected, "next": null })), "of what they are is not said");
}

#[tokio::test]
async fn pools_are_measured_and_their_conditions_counted() {
    let (mut fake, ..) = helper();
    fake.greet_with(Greeting::Welcome(Box::new(Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) })));
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let (address, begun) = (address(&frontend).await, Instant::now());
    let expected = [
        "\nbulkhead_pool_available_bytes{pool=\"default\"} 35433480192",
        // A 33rd is for the inodes of a directory.
        "\nbulkhead_pool_largest_volume_bytes{pool=\"default\"} 34359738368",
        "\nbulkhead_pool_overpromised_bytes{pool=\"default\"} 1073741824",
        "\nbulkhead_pool_condition{pool=\"default\",condition=\"overpromised\"} 1",
        "\nbulkhead_pool_inodes{pool=\"default\"} 65536",
        "\nbulkhead_pool_free_inodes{pool=\"default\"} 65000",
        "\nbulkhead_pool_snapshots{pool=\"default\"} 3",
        "\nbulkhead_pool_snapshot_bytes{pool=\"default\"} 3145728",
        // Nothing was refused yet.
        "\nbulkhead_helper_request_duration_seconds_count{request=\"create-snapshot\",outcome=\"TooFragmented\"} 0",
        "\nbulkhead_helper_request_duration_seconds_count{request=\"create-from\",outcome=\"NoRoom\"} 0",
    ];
    loop {
        let (_, metrics) = get(&address, "/metrics").await;
        if expected.iter().all(|line| metrics.contains(line)) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{metrics}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_said_at_once() {
    let (fake, ..) = helper();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let mut frontend = Frontend::start(&fake, &["--metrics-address", &at]);
    assert_eq!(frontend.ended().await.code(), Some(1));
    assert!(frontend.log().contains(&format!("cannot listen on {at} for metrics and probes")), "{}", frontend.log());
}

#[tokio::test]
async fn whoever_asks_all_the_time_does_not_fill_the_helpers_log() {
    let (mut fake, ..) = helper();
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let address = address(&frontend).await;
    readyz(&address, 200, "[+]helper ok\n").await;
    let asked = || fake.names().into_iter().filter(|name| name == "List").count();
    let (before, begun) = (asked(), Instant::now());
    for _ in 0..100 {
        assert_eq!(get(&address, "/readyz").await.0, 200);
    }
    let (requests, seconds) = (asked() - before, begun.elapsed().as_secs());
    // One per second; the frontend itself also looks at its pools from time to time.
    assert!(requests as u64 <= seconds + 3, "{requests} requests to the helper in {seconds} s");
}

#[tokio::test]
async fn whoever_scrapes_all_the_time_does_not_keep_the_frontend_busy() {
    let (mut fake, ..) = helper();
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let address = address(&frontend).await;
    readyz(&address, 200, "[+]helper ok\n").await;
    let (mut written, begun) = (BTreeSet::new(), Instant::now());
    for _ in 0..100 {
        // Each has a different number of open files or of CPU seconds.
        written.insert(get(&address, "/metrics").await.1);
    }
    let seconds = begun.elapsed().as_secs();
    assert!(written.len() as u64 <= seconds + 2, "written {} times in {seconds} s", written.len());
}

/// Threads whose clients come without end.
struct Flood {
    is_over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<u32>>,
}

impl Flood {
    /// Each thread calls what `clients` returns again and again.
    fn begin<C: FnMut() + Send + 'static>(clients: impl Fn() -> C) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let (mut client, is_over) = (clients(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut calls = 0;
                while !is_over.load(Ordering::Relaxed) {
                    client();
                    calls += 1;
                }
                calls
            })
        };
        let threads = (0..4).map(thread).collect();
        Self { is_over, threads }
    }

    /// Returns how many have come.
    fn end(self) -> u32 {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_come_and_go_without_end_keep_no_probe_waiting() {
    let (mut fake, csi, _) = helper();
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let address = address(&frontend).await;
    readyz(&address, 200, "ready").await;
    let flood = Flood::begin(|| {
        let csi = csi.clone();
        move || {
            if let Ok(mut client) = std::os::unix::net::UnixStream::connect(&csi) {
                // The beginning of HTTP/2, with settings.
                let _ = client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            }
        }
    });
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(3) {
        let asked = Instant::now();
        assert_eq!(get(&address, "/healthz").await, (200, "ok\n".to_owned()));
        times.push(asked.elapsed());
        sleep(Duration::from_millis(10)).await;
    }
    let clients = flood.end();
    let usual = median(&mut times);
    println!("{clients} clients, and half of {} answers took {usual:?}", times.len());
    // A kubelet waits for five seconds, and this machine is busy with the clients as well.
    assert!(usual < Duration::from_secs(2), "probes beside {clients} clients took {times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_is_answered_beside_clients_that_connect_and_say_nothing() {
    let (mut fake, _, _) = helper();
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    let address = address(&frontend).await;
    readyz(&address, 200, "ready").await;
    let flood = Flood::begin(|| {
        let (address, mut latest) = (address.clone(), VecDeque::new());
        move || {
            latest.extend(std::net::TcpStream::connect(&address));
            if latest.len() > 60 {
                latest.pop_front();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let (begun, mut probes) = (Instant::now(), 0_u32);
    while begun.elapsed() < Duration::from_secs(3) {
        // It has the time that a loaded kubelet takes between connecting and asking.
        let mut probe = TcpStream::connect(&address).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        let mut answer = String::new();
        let asked = probe.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let heard = probe.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "probe {probes}: {asked:?} {heard:?} {answer:?}");
        probes += 1;
    }
    let clients = flood.end();
    println!("{probes} probes beside {clients} clients");
}

#[tokio::test]
async fn many_idle_clients_are_waited_for_once() {
    let (mut fake, csi, _) = helper();
    fake.run();
    let frontend = Frontend::start(&fake, &["--metrics-address", "127.0.0.1:0"]);
    readyz(&address(&frontend).await, 200, "ready").await;
    let begun = Instant::now();
    let connect = || {
        let csi = csi.clone();
        std::thread::spawn(move || std::os::unix::net::UnixStream::connect(csi).unwrap())
    };
    let idle: Vec<_> = (0..400).map(|_| connect()).collect();
    let idle: Vec<std::os::unix::net::UnixStream> =
        tokio::task::spawn_blocking(|| idle.into_iter().map(|one| one.join().unwrap()).collect()).await.unwrap();
    let mut identity = IdentityClient::new(channel(&csi).await);
    identity.probe(ProbeRequest {}).await.unwrap();
    let waited = begun.elapsed();
    println!("a client beside {} idle ones was served after {waited:?}", idle.len());
    // One after the other, they would be waited for for more than two minutes.
    assert!(waited < Duration::from_secs(30), "{waited:?} beside {} idle clients", idle.len());
}
