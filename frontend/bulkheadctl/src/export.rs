//! `volume export`: all volumes with whose they are, for whoever has to bring them back.

use bulkhead_console::report;
use bulkhead_frontend::proto::csi::NodeGetInfoRequest;
use bulkhead_frontend::proto::inspection::{ExportVolumesRequest, ExportVolumesResponse};
use bulkhead_model::exported::Exported;
use bulkhead_model::printable::visible_json;
use k8s_openapi::jiff::Timestamp;

use crate::client::Client;
use crate::failure::Failure;
use crate::pages;

/// Prints the volumes of `pool`, or all, as lines of JSON.
pub async fn run(mut client: Client, pool: Option<&str>) -> Result<(), Failure> {
    // A frontend that runs without a node's name says so when it is asked; the volumes can be told without it.
    let node = client.node.node_get_info(NodeGetInfoRequest {}).await;
    let node = node.map(|info| info.into_inner().node_id).unwrap_or_default();
    let (exported_at, release) = (Timestamp::now().to_string(), env!("CARGO_PKG_VERSION").to_owned());
    let ask = async |starting_token| client.inspection.export_volumes(ExportVolumesRequest { starting_token }).await;
    let take = |page: ExportVolumesResponse| {
        let mut lines = String::new();
        for volume in &page.volumes {
            let volume: Exported = serde_json::from_str(volume).map_err(|_| Failure::Incomplete("volume"))?;
            if pool.is_none_or(|pool| pool == volume.pool) {
                let (node, exported_at, release) = (node.clone(), exported_at.clone(), release.clone());
                let volume = Exported { node, exported_at, release, ..volume };
                let line = serde_json::to_string(&volume).map_err(|_| Failure::Incomplete("volume"))?;
                lines.push_str(&visible_json(&line));
                lines.push('\n');
            }
        }
        report::print(&lines)?;
        Ok(page.next_token)
    };
    pages::each(ask, take).await
}
