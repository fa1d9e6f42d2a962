//! The command line.

use std::path::PathBuf;

use bulkhead_frontend::csi::LONGEST_NODE_ID;
use bulkhead_frontend::endpoint::Endpoint;
use bulkhead_frontend::kubernetes::Access;
use bulkhead_frontend::telemetry::LogFormat;
use clap::Parser;

/// Serves the Container Storage Interface for local volumes, with no privilege at all.
///
/// Driver name, publish directories and pools come from the privileged helper. Without --csi-endpoint the helper makes
/// the CSI socket too, and the socket by which the kubelet finds the plugin.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-frontend", version)]
pub struct Options {
    /// Socket of bulkhead-privhelper.
    #[arg(long, value_name = "PATH", env = "BULKHEAD_HELPER_SOCKET")]
    pub helper_socket: PathBuf,

    /// Name of this node, as the orchestrator calls it.
    #[arg(long, value_name = "NAME", env = "BULKHEAD_NODE_ID", value_parser = node_id)]
    pub node_id: String,

    /// Socket to make and serve, instead of the helper's: unix:///PATH. Only this user and root may connect to it.
    #[arg(long, value_name = "ENDPOINT", env = "CSI_ENDPOINT")]
    pub csi_endpoint: Option<Endpoint>,

    /// Work as the node's storage agent too, by way of the API server that this kubeconfig names.
    #[arg(long, value_name = "PATH", env = "BULKHEAD_KUBECONFIG", conflicts_with = "in_cluster")]
    pub kubeconfig: Option<PathBuf>,

    /// Work as the node's storage agent too, with the service account of the pod that this runs in.
    #[arg(long, env = "BULKHEAD_IN_CLUSTER")]
    pub in_cluster: bool,

    /// Namespace for objects of the agent's own. By default that of the service account, or of the kubeconfig's context.
    #[arg(long, value_name = "NAME", env = "BULKHEAD_NAMESPACE")]
    pub namespace: Option<String>,

    /// Only ask whether the privileged helper answers, and end with 0 if it does: for startup probes.
    #[arg(long)]
    pub probe: bool,

    /// How the log on standard error looks: text or json.
    #[arg(long, value_name = "FORMAT", env = "BULKHEAD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// What is logged: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", env = "BULKHEAD_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

impl Options {
    /// The way to the API server, if there is to be one.
    pub fn access(&self) -> Option<Access> {
        match &self.kubeconfig {
            Some(path) => Some(Access::Kubeconfig(path.clone())),
            None => self.in_cluster.then_some(Access::InCluster),
        }
    }
}

fn node_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > LONGEST_NODE_ID {
        Err(format!("a node's name has 1 to {LONGEST_NODE_ID} bytes"))
    } else {
        Ok(text.to_owned())
    }
}
