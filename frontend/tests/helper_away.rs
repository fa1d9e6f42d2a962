//! What callers see while the helper is unreachable, restarts, or behaves unexpectedly.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_frontend::helper::{CallError, Helper, Unreachable};
use bulkhead_frontend::proto::csi::controller_server::Controller;
use bulkhead_frontend::proto::csi::identity_server::Identity;
use bulkhead_frontend::proto::csi::node_server::Node;
use bulkhead_frontend::proto::csi::{DeleteVolumeRequest, ProbeRequest};
use bulkhead_frontend::volumes::Volumes;
use bulkhead_protocol::{Error, ErrorKind as Kind, HIGHEST_VERSION, Reply, Request, Socket, Welcome};
use tonic::{Code, Request as Call};

use fake::{Act, FakeHelper, Greeting, creation, done, failure, no_volumes, publication, size, welcome};

const TARGET: &str = "/var/lib/kubelet/pods/0d6f/volumes/kubernetes.io~csi/pvc-x/mount";

fn deletion() -> Call<DeleteVolumeRequest> {
    Call::new(DeleteVolumeRequest { volume_id: "pvc-1".to_owned(), ..DeleteVolumeRequest::default() })
}

async fn ready(plugin: &impl Identity) -> bool {
    plugin.probe(Call::new(ProbeRequest {})).await.unwrap().into_inner().ready.unwrap()
}

#[tokio::test]
async fn an_absent_helper_is_unavailable_and_the_plugin_not_ready() {
    let mut fake = FakeHelper::stopped(|_| done());
    let plugin = fake.plugin();
    let begun = Instant::now();
    assert!(!ready(&plugin).await);
    assert!(begun.elapsed() < Duration::from_secs(3), "a probe waits as long as a request");
    let status = plugin.delete_volume(deletion()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("helper.sock"), "{}", status.message());
    fake.run();
    plugin.delete_volume(deletion()).await.unwrap();
    assert!(ready(&plugin).await);
}

#[tokio::test]
async fn a_restart_between_requests_goes_unnoticed() {
    let mut fake = FakeHelper::start(|_| done());
    let plugin = fake.plugin();
    for _ in 0..3 {
        plugin.delete_volume(deletion()).await.unwrap();
        fake.kill().await;
        fake.run();
    }
    plugin.delete_volume(deletion()).await.unwrap();
    assert_eq!(fake.names(), ["Delete"; 4]);
}

#[tokio::test]
async fn a_restart_in_the_middle_of_a_request_goes_unnoticed() {
    let first = AtomicBool::new(true);
    let fake = FakeHelper::start(move |_| if first.swap(false, Ordering::SeqCst) { Act::Close } else { done() });
    let plugin = fake.plugin();
    plugin.delete_volume(deletion()).await.unwrap();
    assert_eq!(fake.names(), ["Delete"; 2]);
}

#[tokio::test]
async fn a_request_is_repeated_once_and_no_more() {
    let fake = FakeHelper::start(|_| Act::Close);
    let plugin = fake.plugin();
    assert_eq!(plugin.delete_volume(deletion()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(fake.names(), ["Delete"; 2]);
}

#[tokio::test]
async fn a_helper_that_comes_back_within_seconds_is_waited_for() {
    let mut fake = FakeHelper::start(|_| done());
    let plugin = fake.plugin();
    plugin.delete_volume(deletion()).await.unwrap();
    fake.kill().await;
    let call = tokio::spawn(async move { plugin.delete_volume(deletion()).await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    fake.run();
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_restarted_helper_is_asked_for_its_pools_again() {
    let mut fake = FakeHelper::start(|request| match request {
        Request::Create { pool, .. } if pool.as_str() == "new" => size(1 << 30),
        other => panic!("{other:?}"),
    });
    let helper = Helper::new(fake.path());
    assert_eq!(helper.wait().await.pools.as_slice()[0].name.as_str(), "default");
    let plugin = fake.plugin();
    assert!(plugin.delete_volume(Call::new(DeleteVolumeRequest::default())).await.is_err());
    fake.kill().await;
    fake.greet_with(Greeting::Welcome(Box::new(welcome(&["new"]))));
    fake.run();
    plugin.create_volume(Call::new(creation("pvc-1"))).await.unwrap();
    assert_eq!(helper.welcome().await.unwrap().pools.as_slice()[0].name.as_str(), "new");
}

#[tokio::test]
async fn versions_that_are_not_known_are_refused() {
    for version in [0, HIGHEST_VERSION + 1, u16::MAX] {
        let fake = FakeHelper::stopped(|_| done());
        let mut greeting = welcome(&["default"]);
        greeting.version = version;
        fake.greet_with(Greeting::Welcome(Box::new(greeting)));
        let mut fake = fake;
        fake.run();
        let plugin = fake.plugin();
        let status = plugin.delete_volume(deletion()).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "this does not clear by itself");
        assert!(status.message().contains(&version.to_string()), "{}", status.message());
        assert!(fake.names().is_empty(), "nothing may be requested from it");
    }
}

#[tokio::test]
async fn a_request_of_a_later_version_is_not_sent_to_a_helper_that_does_not_know_it() {
    let fake = FakeHelper::start(|_| done());
    let volumes = Volumes::new(Helper::new(fake.path()));
    let fault = volumes.discard("pvc-1".parse().unwrap()).await.unwrap_err();
    assert!(fault.is(Kind::Unsupported) && fault.to_string().contains("upgrade bulkhead-privhelper"), "{fault}");
    volumes.reclaim("pvc-1".parse().unwrap()).await.unwrap();
    assert_eq!(fake.names(), ["Delete"]);

    let answers = Mutex::new(vec![failure(Kind::Refused), failure(Kind::NotFound), done()]);
    let fake = FakeHelper::start(move |_| answers.lock().unwrap().pop().unwrap());
    fake.greet_with(Greeting::Welcome(Box::new(Welcome { version: 2, ..welcome(&["default"]) })));
    let volumes = Volumes::new(Helper::new(fake.path()));
    for _ in 0..2 {
        volumes.discard("pvc-1".parse().unwrap()).await.unwrap();
    }
    assert!(volumes.discard("pvc-1".parse().unwrap()).await.unwrap_err().is(Kind::Refused));
    assert_eq!(fake.names(), ["DeleteUnused"; 3]);
}

#[tokio::test]
async fn a_helper_that_refuses_to_talk_says_why() {
    let mut fake = FakeHelper::stopped(|_| done());
    fake.greet_with(Greeting::Refuse(Error::new(bulkhead_protocol::ErrorKind::Invalid, "not you")));
    fake.run();
    let status = fake.plugin().delete_volume(deletion()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("not you"), "{}", status.message());
}

#[tokio::test]
async fn a_helper_that_says_nothing_is_away() {
    let mut fake = FakeHelper::stopped(|_| done());
    fake.greet_with(Greeting::Silence);
    fake.run();
    let plugin = fake.plugin();
    assert!(!ready(&plugin).await);
    assert_eq!(plugin.delete_volume(deletion()).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn what_is_no_answer_ends_the_connection_and_the_next_one_works() {
    for garbage in [vec![0xff; 16], vec![0; 5000], vec![0, 0, 0, 0, 0, 0, 0, 0, 1]] {
        let first = AtomicBool::new(true);
        let fake =
            FakeHelper::start(
                move |_| {
                    if first.swap(false, Ordering::SeqCst) { Act::Bytes(garbage.clone()) } else { done() }
                },
            );
        let plugin = fake.plugin();
        assert_eq!(plugin.delete_volume(deletion()).await.unwrap_err().code(), Code::Internal);
        plugin.delete_volume(deletion()).await.unwrap();
    }
}

#[tokio::test]
async fn a_reply_to_another_request_is_no_reply() {
    let fake = FakeHelper::start(|_| Act::Answer(Ok(Reply::Listening)));
    let status = fake.plugin().delete_volume(deletion()).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().starts_with("delete:"), "{}", status.message());
}

#[tokio::test]
async fn a_listening_socket_comes_ready_to_be_served() {
    let fake = FakeHelper::stopped(|_| done());
    let path = fake.directory().join("csi.sock");
    let made = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // A client that connected before the frontend started.
    let early = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let fake = FakeHelper::start(move |request| match request {
        Request::Listen { socket: Socket::Csi } => {
            Act::Attach(Ok(Reply::Listening), vec![made.try_clone().unwrap().into()])
        }
        other => panic!("{other:?}"),
    });
    let listener = Helper::new(fake.path()).listen(Socket::Csi).await.unwrap();
    listener.accept().unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(early);
}

#[tokio::test]
async fn a_listening_socket_that_does_not_come_or_not_alone_is_refused() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let writers = Arc::clone(&kept);
    let pipes = move || {
        let (readers, mut made): (Vec<_>, Vec<_>) = (0..3).map(|_| std::io::pipe().unwrap()).unzip();
        writers.lock().unwrap().append(&mut made);
        readers.into_iter().map(OwnedFd::from).collect()
    };
    let fake = FakeHelper::start(move |request| match request {
        Request::Listen { socket: Socket::Csi } => Act::Answer(Ok(Reply::Listening)),
        _ => Act::Attach(Ok(Reply::Listening), pipes()),
    });
    let helper = Helper::new(fake.path());
    assert!(matches!(helper.listen(Socket::Csi).await, Err(CallError::Mismatched("listen"))));
    let refused = helper.listen(Socket::Registration).await;
    assert!(matches!(refused, Err(CallError::Away(Unreachable::Malformed(_)))), "{refused:?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut writers = kept.lock().unwrap();
    assert_eq!(writers.len(), 3);
    for writer in writers.iter_mut() {
        assert_eq!(writer.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe, "a descriptor is left open");
    }
}

#[tokio::test]
async fn connections_are_few_and_one_is_left_for_short_requests() {
    let hung = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hung);
    let fake = FakeHelper::start(move |request| match request {
        Request::Create { .. } => {
            count.fetch_add(1, Ordering::SeqCst);
            Act::Hang
        }
        _ => no_volumes(),
    });
    let plugin = fake.plugin();
    for number in 0..40 {
        let plugin = plugin.clone();
        tokio::spawn(async move { plugin.create_volume(Call::new(creation(&format!("pvc-{number}")))).await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(hung.load(Ordering::SeqCst), 15);
    for _ in 0..20 {
        assert!(ready(&plugin).await);
    }
    assert!(fake.most_connections.load(Ordering::SeqCst) <= 16);
}

#[tokio::test]
async fn deletions_hold_up_neither_publishing_nor_creating() {
    let hung = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hung);
    let fake = FakeHelper::start(move |request| match request {
        Request::Delete { .. } => {
            count.fetch_add(1, Ordering::SeqCst);
            Act::Hang
        }
        Request::Create { .. } => size(1 << 30),
        Request::BindMount { .. } => done(),
        _ => no_volumes(),
    });
    let plugin = fake.plugin();
    for number in 0..20 {
        let (plugin, volume_id) = (plugin.clone(), format!("old-{number}"));
        let request = DeleteVolumeRequest { volume_id, ..DeleteVolumeRequest::default() };
        tokio::spawn(async move { plugin.delete_volume(Call::new(request)).await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(hung.load(Ordering::SeqCst), 7);
    let others = async {
        assert!(ready(&plugin).await);
        plugin.create_volume(Call::new(creation("new"))).await.unwrap();
        plugin.node_publish_volume(Call::new(publication(false, TARGET))).await.unwrap();
    };
    // A deletion that takes longer than 5 s is no longer counted, and the test would then show nothing.
    tokio::time::timeout(Duration::from_secs(4), others).await.unwrap();
}
