//! Clients that ask for much and read nothing: they take a bounded part of the memory, and no change waits for them.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bulkhead_frontend::proto::csi::GetMetadataAllocatedRequest;
use bulkhead_frontend::proto::csi::controller_client::ControllerClient;
use bulkhead_frontend::proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use bulkhead_protocol::{
    HIGHEST_VERSION, MAX_RANGES, NameHash, Origin, Range, Reply, Request, SnapshotOf, Usage, VolumeId, VolumeKind,
    VolumeSpec, Welcome,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Endpoint;
use tower::service_fn;

use fake::{Act, FakeHelper, Greeting, creation, done, no_volumes, roomy, size, welcome};
use program::{Frontend, channel, median};

/// How many clients come, and how many streams each opens.
const CLIENTS: usize = 64;
const STREAMS: usize = 32;

/// The most that the program may need, in bytes: half of what its container is given.
const MOST: u64 = 128 << 20;

fn helper(most_at_once: Arc<AtomicUsize>) -> FakeHelper {
    let at_once = AtomicUsize::new(0);
    let mut helper = FakeHelper::stopped(move |request| match request {
        Request::Create { .. } => size(1 << 30),
        Request::List { .. } => no_volumes(),
        Request::PoolStatus { .. } => roomy(),
        Request::Usage { .. } => Act::Answer(Ok(Reply::Usage(Usage {
            pool: "default".parse().unwrap(),
            spec: VolumeSpec {
                size: (1 << 40).try_into().unwrap(),
                kind: VolumeKind::Snapshot { of: SnapshotOf::Filesystem },
                name_hash: NameHash([0; 32]),
            },
            used_bytes: None,
            available_bytes: None,
            used_inodes: None,
            available_inodes: None,
            targets: 0,
            condition: None,
        }))),
        Request::Origin { .. } => {
            let source: VolumeId = "pvc-1".parse().unwrap();
            Act::Answer(Ok(Reply::Origin(Some(Origin { source: source.clone(), family: source, copied: 1 }))))
        }
        Request::Delta { from, .. } => {
            most_at_once.fetch_max(at_once.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(300));
            at_once.fetch_sub(1, Ordering::Relaxed);
            let ranges: Vec<_> =
                (0..MAX_RANGES as u64).map(|number| Range { offset: from + number * 8192, length: 4096 }).collect();
            let next = Some(from + MAX_RANGES as u64 * 8192);
            Act::Answer(Ok(Reply::Ranges { ranges: ranges.try_into().unwrap(), next }))
        }
        _ => done(),
    });
    helper.greet_with(Greeting::Welcome(Box::new(Welcome { version: HIGHEST_VERSION, ..welcome(&["default"]) })));
    helper.run();
    helper
}

fn resident(frontend: &Frontend) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", frontend.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_that_nobody_reads_take_little_and_delay_no_change() {
    let most_at_once = Arc::new(AtomicUsize::new(0));
    let helper = helper(Arc::clone(&most_at_once));
    let socket = helper.directory().join("csi.sock");
    let frontend = Frontend::start(&helper, &["--csi-endpoint", &format!("unix://{}", socket.display())]);
    let mut controller = ControllerClient::new(channel(&socket).await);
    let mut unread = Vec::new();
    for _ in 0..CLIENTS {
        let path = socket.clone();
        let connect = service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost")
            .initial_stream_window_size(64 << 10)
            .initial_connection_window_size(64 << 20);
        let client = SnapshotMetadataClient::new(endpoint.connect_with_connector(connect).await.unwrap());
        for _ in 0..STREAMS {
            let mut client = client.clone();
            unread.push(tokio::spawn(async move {
                let request = GetMetadataAllocatedRequest { snapshot_id: "snap-1".to_owned(), ..Default::default() };
                let stream = client.get_metadata_allocated(request).await;
                std::future::pending::<()>().await;
                drop(stream);
            }));
        }
    }
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(8) {
        let asked = Instant::now();
        controller.create_volume(creation(&format!("pvc-{}", times.len()))).await.unwrap();
        times.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (resident, at_once) = (resident(&frontend), most_at_once.load(Ordering::Relaxed));
    let usual = median(&mut times);
    println!("{} MiB, {at_once} reads at once; of {} creations half took {usual:?}", resident >> 20, times.len());
    assert!((1..=2).contains(&at_once), "{at_once} bulk reads at once");
    assert!(usual < Duration::from_secs(2), "creations took {times:?}");
    assert!(resident < MOST, "{resident} bytes");
    unread.iter().for_each(tokio::task::JoinHandle::abort);
}
