//! The agent of a node, with a mocked API server.

use std::time::Duration;

use bulkhead_frontend::helper::Helper;
use bulkhead_frontend::kubernetes::{Agent, ApiServer, Intervals, Ledger, View};
use bulkhead_frontend::readiness::Readiness;
use bulkhead_frontend::server::Shutdown;
use bulkhead_frontend::volumes::Volumes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::MockApi;
use crate::fake::{FakeHelper, PATIENCE};

/// Runs the agent of `node-1` for as long as the test lasts, and returns a view of it.
pub fn run(helper: &FakeHelper, api: &MockApi) -> View {
    let view = View::of_agent();
    let agent = Agent {
        access: ApiServer::kubeconfig(api.kubeconfig(), None),
        namespace: Some("bulkhead-system".to_owned()),
        driver: "bulkhead.csi.local".parse().unwrap(),
        node: "node-1".to_owned(),
        volumes: Volumes::new(Helper::new(helper.path())),
        ledger: Ledger::default(),
        view: view.clone(),
        readiness: Readiness::default(),
        intervals: Intervals::default(),
    };
    tokio::spawn(agent.run(Shutdown::default()));
    view
}

/// Looks until there is something to see, and returns it.
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} did not happen");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The answer with which a request fails.
pub fn status(code: u16, reason: &str, retry_after: u32) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": "the test wants it", "details": { "retryAfterSeconds": retry_after } })
}
