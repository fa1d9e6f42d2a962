//! Checks what the node's volumes depend on.

use bulkhead_console::checks;
use bulkhead_console::report::Report;
use bulkhead_frontend::proto::inspection::DiagnoseRequest;
use bulkhead_model::check::Check;

use crate::arrays;
use crate::client::Client;
use crate::failure::Failure;
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
            let asked = match server {
                Server::Frontend(_) => "frontend",
                Server::Helper(_) => "helper",
            };
            checks.push(Check::failed(asked, failure.to_string()));
        }
    }
    checks.extend(arrays::checks());
    checks::report(&checks)
}

async fn diagnose(server: &Server) -> Result<(String, Vec<Check>), Failure> {
    let mut client = Client::connect(server).await?;
    let answer = client.inspection.diagnose(DiagnoseRequest {}).await?.into_inner();
    Ok((answer.frontend_release, answer.checks.into_iter().map(Check::from).collect()))
}

fn frontend(server: &Server, release: &str) -> Check {
    let (name, own) = ("frontend", env!("CARGO_PKG_VERSION"));
    match server {
        Server::Helper(socket) => {
            Check::note(name, format!("not queried; the helper at {} was, release {release}", socket.display()))
        }
        Server::Frontend(endpoint) => {
            let message = format!("answers at {}; release {release}", endpoint.path().display());
            if release == own {
                Check::ok(name, message)
            } else {
                Check::note(name, format!("{message}; bulkheadctl is release {own}: upgrade the older of the two"))
            }
        }
    }
}
