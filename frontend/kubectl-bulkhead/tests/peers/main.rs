//! `kubectl bulkhead` beside an API server that holds large objects, and peers whose lists do not end: it needs little
//! memory, comes to an end, and says what it could not read.

mod api_server;
mod bundle;

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::api_server::{Flaw, answer};

/// The most that the program may need, in bytes.
const MOST: u64 = 64 << 20;

/// Only guards against hanging, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a command printed, and the most memory that it needed, in bytes.
struct Ran {
    output: Output,
    peak: u64,
}

impl Ran {
    /// What it said, wherever.
    fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&self.output.stdout) + &text(&self.output.stderr)
    }
}

/// An API server, and what the program needs to find it.
struct Server {
    serving: JoinHandle<()>,
    directory: TempDir,
}

impl Server {
    async fn start(flaw: Flaw) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            axum::serve(listener, Router::new().fallback(answer).with_state(flaw)).await.unwrap();
        });
        let directory = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a", "users": [{ "name": "a", "user": {} }],
            "clusters": [{ "name": "a", "cluster": { "server": server } }],
            "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
        });
        fs::write(directory.path().join("kubeconfig"), config.to_string()).unwrap();
        Self { serving, directory }
    }

    /// Begins a command of the program.
    fn begin(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-bulkhead"));
        command.args(arguments).env_clear().env("KUBECONFIG", self.directory.path().join("kubeconfig"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn run(flaw: Flaw, arguments: &[&str]) -> Ran {
    let server = Server::start(flaw).await;
    let child = server.begin(arguments);
    tokio::task::spawn_blocking(move || wait(child)).await.unwrap()
}

/// Waits until it ends, and watches its memory.
fn wait(mut child: Child) -> Ran {
    let (begun, mut peak) = (Instant::now(), 0);
    let status = format!("/proc/{}/status", child.id());
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or_default() << 10);
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it does not end, and needs {} MiB", peak >> 20);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    println!("{} MiB, after {:?}", peak >> 20, begun.elapsed());
    Ran { output, peak }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_as_large_as_the_api_server_stores_need_no_more_memory_than_others() {
    for arguments in [&["orphans"][..], &["doctor"], &["adopt"], &["volumes", "-o", "wide"]] {
        let ran = run(Flaw::Large, arguments).await;
        assert!(ran.peak < MOST, "{arguments:?} needs {} MiB", ran.peak >> 20);
        assert!(!ran.said().contains("failed at"), "{}", ran.said());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_whose_lists_do_not_end_are_given_up_and_nothing_is_concluded() {
    for (flaw, why) in [
        (Flaw::AgentLarge, "the list has more than 64 MiB"),
        (Flaw::AgentEmpty, "the list has more than 1000 pages"),
        (Flaw::AgentCircle, "the list goes in a circle"),
    ] {
        for arguments in [&["orphans"][..], &["doctor"], &["adopt"]] {
            let ran = run(flaw, arguments).await;
            assert!(ran.peak < 4 * MOST, "{arguments:?} needs {} MiB", ran.peak >> 20);
            assert_eq!(ran.output.status.code(), Some(1), "{arguments:?}: {}", ran.said());
            assert!(ran.said().contains(why), "{arguments:?}: {}", ran.said());
            assert!(ran.said().contains("nothing is concluded from a part of it"), "{arguments:?}: {}", ran.said());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_the_api_server_that_does_not_end_fails() {
    for arguments in [&["orphans"][..], &["doctor"], &["adopt"], &["volumes"], &["nodes"]] {
        let ran = run(Flaw::Circle, arguments).await;
        assert_eq!(ran.output.status.code(), Some(1), "{arguments:?}: {}", ran.said());
        let told = "listing PersistentVolumes failed at";
        assert!(ran.said().contains(told) && ran.said().contains("goes in a circle"), "{}", ran.said());
    }
    let ran = run(Flaw::None, &["orphans"]).await;
    assert!(ran.output.status.success(), "{}", ran.said());
    assert!(ran.said().contains("orphan-snapshot"), "{}", ran.said());
}
