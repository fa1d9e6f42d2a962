//! Checks what the node's volumes depend on.

use bulkhead_frontend::proto::inspection::check::Outcome;
use bulkhead_frontend::proto::inspection::{Check, DiagnoseRequest};
use bulkhead_frontend::report::{Report, Table};
use serde_json::{Value, json};

use crate::client::{Client, Failure};
use crate::locate::Server;

/// All checks, and whether none failed.
pub async fn run(server: &Server) -> (Report, bool) {
    let mut checks = vec![];
    match diagnose(server).await {
        Ok((release, found)) => {
            checks.push(frontend(server, &release));
            checks.extend(found);
        }
        Err(failure) => {
            let message = failure.to_string();
            checks.push(Check { name: "frontend".to_owned(), outcome: Outcome::Failed.into(), message });
        }
    }
    let healthy = checks.iter().all(|check| check.outcome() != Outcome::Failed);
    let rows = checks.iter().map(|check| [outcome(check).to_owned(), check.name.clone(), check.message.clone()]);
    let json = json!({ "healthy": healthy, "checks": checks.iter().map(described).collect::<Vec<_>>() });
    (Report::new(json, Table::rows(rows)), healthy)
}

async fn diagnose(server: &Server) -> Result<(String, Vec<Check>), Failure> {
    let mut client = Client::connect(server).await?;
    let answer = client.inspection.diagnose(DiagnoseRequest {}).await?.into_inner();
    Ok((answer.frontend_release, answer.checks))
}

fn frontend(server: &Server, release: &str) -> Check {
    let own = env!("CARGO_PKG_VERSION");
    let (outcome, message) = match server {
        Server::Helper(socket) => {
            (Outcome::Note, format!("not asked, but the helper at {}; release {release}", socket.display()))
        }
        Server::Frontend(endpoint) => {
            let message = format!("answers at {}; release {release}", endpoint.path().display());
            if release == own {
                (Outcome::Ok, message)
            } else {
                (Outcome::Note, format!("{message}; bulkheadctl is of release {own}: upgrade the older of the two"))
            }
        }
    };
    Check { name: "frontend".to_owned(), outcome: outcome.into(), message }
}

fn outcome(check: &Check) -> &'static str {
    match check.outcome() {
        Outcome::Ok => "ok",
        Outcome::Note => "note",
        Outcome::Failed => "FAILED",
    }
}

fn described(check: &Check) -> Value {
    json!({ "name": check.name, "outcome": outcome(check).to_lowercase(), "message": check.message })
}
