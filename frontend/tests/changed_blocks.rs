//! Backup programs that cannot be served: volumes are all the same, and whoever asks is told why, and when it is over.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod mock_api;
#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_frontend::proto::inspection::DiagnoseRequest;
use bulkhead_frontend::proto::inspection::inspection_client::InspectionClient;
use bulkhead_model::check::{Check, Outcome};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio::time::sleep;

use fake::{FakeHelper, PATIENCE, done, no_volumes, roomy};
use mock_api::MockApi;
use program::{Frontend, address, channel, get};

/// An agent that is to serve backup programs.
struct Agent {
    frontend: Frontend,
    csi: PathBuf,
    /// Where its certificate is.
    directory: TempDir,
    _api: MockApi,
    _helper: FakeHelper,
}

impl Agent {
    /// One that serves them at `at`. There is no certificate yet.
    async fn start(at: &str) -> Self {
        let helper = FakeHelper::start(|request| match request {
            bulkhead_protocol::Request::List { .. } => no_volumes(),
            bulkhead_protocol::Request::PoolStatus { .. } => roomy(),
            _ => done(),
        });
        let api = MockApi::start(helper.directory(), Vec::new(), |_, _| None).await;
        let (csi, directory) = (helper.directory().join("csi.sock"), tempfile::tempdir().unwrap());
        let (kubeconfig, certificate) =
            (api.kubeconfig().display().to_string(), directory.path().display().to_string());
        let endpoint = format!("unix://{}", csi.display());
        let options = [
            ["--kubeconfig", &kubeconfig],
            ["--namespace", "storage"],
            ["--metrics-address", "127.0.0.1:0"],
            ["--csi-endpoint", &endpoint],
            ["--snapshot-metadata-address", at],
            ["--snapshot-metadata-certificate", &certificate],
        ];
        let frontend = Frontend::start(&helper, options.as_flattened());
        Self { frontend, csi, directory, _api: api, _helper: helper }
    }

    /// Waits until it is ready, and everything that can be asked says this of backup programs: that they are served, or why
    /// not.
    async fn says(&self, flaw: Option<&str>) {
        let (address, begun) = (address(&self.frontend).await, Instant::now());
        let expected = match flaw {
            None => "[+]changed-blocks ok\n".to_owned(),
            Some(flaw) => format!("[!]changed-blocks not ready: {flaw}"),
        };
        loop {
            let (status, report) = get(&address, "/readyz").await;
            if status == 200 && report.contains(&expected) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{expected:?} is not what it says: {status} {report}");
            sleep(Duration::from_millis(50)).await;
        }
        let mut inspection = InspectionClient::new(channel(&self.csi).await);
        let checks = inspection.diagnose(DiagnoseRequest {}).await.unwrap().into_inner().checks;
        let found = checks.into_iter().map(Check::from).find(|check| check.name == "changed blocks").unwrap();
        let outcome = if flaw.is_some() { Outcome::Failed } else { Outcome::Ok };
        assert!(found.outcome == outcome && found.message.contains(flaw.unwrap_or_default()), "{found:?}");
        // They are written once a second.
        let metric = format!("\nbulkhead_ready{{part=\"changed-blocks\"}} {}", u8::from(flaw.is_none()));
        while !get(&address, "/metrics").await.1.contains(&metric) {
            assert!(begun.elapsed() < PATIENCE, "there is no {metric:?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Writes a new certificate that is valid until this year begins, and its key.
fn write(directory: &Path, year: i32) {
    let mut parameters = CertificateParams::new(["blocks.example.org".to_owned()]).unwrap();
    parameters.not_after = date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    fs::write(directory.join("tls.crt"), parameters.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_told_until_a_good_one_is_there() {
    let agent = Agent::start("127.0.0.1:0").await;
    let directory = agent.directory.path();
    let begin = format!("the certificate for changed blocks in {} cannot be used: ", directory.display());
    agent.says(Some(&begin)).await;
    write(directory, 4000);
    agent.says(None).await;
    write(directory, 2000);
    agent.says(Some(&format!("{begin}the certificate has expired; until it can be, the former one is used"))).await;
    write(directory, 4000);
    agent.says(None).await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_and_keeps_no_volume_back() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let agent = Agent::start(&at).await;
    let why = format!("changed blocks are not served: cannot listen on {at} for changed blocks: ");
    agent.says(Some(&why)).await;
}
