//! The program itself, in front of a scripted helper.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::fake::{FakeHelper, PATIENCE};

/// The running program.
pub struct Frontend {
    pub child: Child,
    log: PathBuf,
}

impl Frontend {
    pub fn start(fake: &FakeHelper, options: &[&str]) -> Self {
        let log = fake.directory().join("log");
        let child = Command::new(env!("CARGO_BIN_EXE_bulkhead-frontend"))
            .arg("--helper-socket")
            .arg(fake.path())
            .args(["--node-id", "node-1"])
            .args(options)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until its log contains `part`.
    pub async fn says(&self, part: &str) {
        let begun = Instant::now();
        while !self.log().contains(part) {
            assert!(begun.elapsed() < PATIENCE, "the log does not contain {part:?}: {}", self.log());
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Waits for it to exit.
    pub async fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.log());
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects as soon as a process listens at `path`.
pub async fn channel(path: &Path) -> Channel {
    let path = path.to_owned();
    let begun = Instant::now();
    while UnixStream::connect(&path).await.is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody listens at {}", path.display());
        sleep(Duration::from_millis(10)).await;
    }
    let connect = service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
}

/// What half of these took at most. On a busy machine any one of them may take long.
pub fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The answer from a path: its status and its body.
pub async fn get(address: &str, path: &str) -> (u16, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")).await
}

pub async fn ask(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Returns where the frontend serves metrics and probes, according to its log.
pub async fn address(frontend: &Frontend) -> String {
    frontend.says("serving metrics and probes address=").await;
    let log = frontend.log();
    log.split("serving metrics and probes address=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}
