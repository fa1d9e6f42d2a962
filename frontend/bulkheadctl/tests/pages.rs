//! `bulkheadctl` beside a frontend whose lists do not end: it comes to an end, and says so.

#[allow(dead_code, reason = "each suite uses a part of it")]
#[path = "../../tests/fake/mod.rs"]
mod fake;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bulkhead_frontend::proto::inspection::inspection_server::{Inspection, InspectionServer};
use bulkhead_frontend::proto::inspection::*;
use bulkhead_frontend::server::{self, Shutdown};
use tonic::{Request, Response, Status};

use fake::{FakeHelper, no_volumes};

/// How its lists do not end.
#[derive(Clone, Copy)]
enum Endless {
    /// In pages with much on them.
    Large,
    /// In pages with nothing on them.
    Empty,
    /// Each page leads to the same one.
    Circle,
}

struct Liar(Endless);

impl Liar {
    /// The entries of a page, and the token for the next.
    fn page<T: Clone>(&self, entry: T, token: &str) -> (Vec<T>, String) {
        let later = format!("{:0>9}", token.parse::<u32>().unwrap_or(0) + 1);
        match self.0 {
            Endless::Large => (vec![entry; 1000], later),
            Endless::Empty => (Vec::new(), later),
            Endless::Circle => (vec![entry], "again".to_owned()),
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Inspection for Liar {
    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        let volume = Volume { id: "v".repeat(2000), ..Volume::default() };
        let (volumes, next_token) = self.page(volume, &request.get_ref().starting_token);
        Ok(Response::new(ListVolumesResponse { volumes, next_token }))
    }

    async fn export_volumes(&self, request: Request<ExportVolumesRequest>) -> Answer<ExportVolumesResponse> {
        let volume = format!("{{\"volume\":\"{}\"}}", "v".repeat(2000));
        let (volumes, next_token) = self.page(volume, &request.get_ref().starting_token);
        Ok(Response::new(ExportVolumesResponse { volumes, next_token }))
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        let snapshot = Snapshot { id: "s".repeat(2000), ..Snapshot::default() };
        let (snapshots, next_token) = self.page(snapshot, &request.get_ref().starting_token);
        Ok(Response::new(ListSnapshotsResponse { snapshots, next_token }))
    }

    async fn list_pools(&self, _: Request<ListPoolsRequest>) -> Answer<ListPoolsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn get_volume(&self, _: Request<GetVolumeRequest>) -> Answer<GetVolumeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn get_snapshot(&self, _: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        Err(Status::unimplemented(""))
    }

    async fn list_orphans(&self, _: Request<ListOrphansRequest>) -> Answer<ListOrphansResponse> {
        Err(Status::unimplemented(""))
    }

    async fn diagnose(&self, _: Request<DiagnoseRequest>) -> Answer<DiagnoseResponse> {
        Err(Status::unimplemented(""))
    }
}

fn serve(fake: &FakeHelper, endless: Endless) -> PathBuf {
    let path = fake.directory().join("csi.sock");
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let routes = fake.plugin().routes().add_service(InspectionServer::new(Liar(endless)));
    tokio::spawn(async move { server::serve(listener, routes, &Shutdown::default()).await });
    path
}

async fn run(socket: PathBuf, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkheadctl"));
    command.args(arguments).env_clear().env("BULKHEAD_ENDPOINT", socket).stdout(std::process::Stdio::null());
    let (begun, mut child) = (Instant::now(), command.stderr(std::process::Stdio::piped()).spawn().unwrap());
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(300) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{arguments:?} does not end");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_do_not_end_are_given_up() {
    let fake = FakeHelper::start(|_| no_volumes());
    for (endless, why) in [
        (Endless::Large, "bulkheadctl: the list has more than 64 MiB; nothing is concluded"),
        (Endless::Empty, "bulkheadctl: the list has more than 2000 pages"),
        (Endless::Circle, "bulkheadctl: the list goes in a circle"),
    ] {
        let socket = serve(&fake, endless);
        for arguments in [["volume", "list"], ["volume", "export"], ["snapshot", "list"]] {
            let output = run(socket.clone(), &arguments).await;
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
            assert!(told.contains(why), "{arguments:?}: {told}");
        }
    }
}
