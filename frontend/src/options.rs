//! The command line.

use std::path::PathBuf;

use bulkhead_frontend::csi::LONGEST_NODE_ID;
use bulkhead_frontend::endpoint::Endpoint;
use bulkhead_frontend::kubernetes::{ApiServer, Limits, Share};
use bulkhead_frontend::listening::ListenAddress;
use bulkhead_frontend::sandbox::{Needs, Sandbox};
use bulkhead_frontend::telemetry::LogFormat;
use bulkhead_protocol::PoolName;
use clap::Parser;

/// Serve the Container Storage Interface for local volumes, without any privilege.
///
/// The privileged helper provides the driver name, the publish directories and the pools. Without --csi-endpoint it also
/// creates the CSI socket, and the socket through which the kubelet discovers the plugin.
#[derive(Debug, Parser)]
#[command(name = "bulkhead-frontend", version)]
pub struct Options {
    /// Socket of bulkhead-privhelper.
    #[arg(long, value_name = "PATH", env = "BULKHEAD_HELPER_SOCKET")]
    pub helper_socket: PathBuf,

    /// Name of this node, as the orchestrator spells it.
    #[arg(long, value_name = "NAME", env = "BULKHEAD_NODE_ID", value_parser = node_id)]
    pub node_id: String,

    /// Socket to create and serve instead of the helper's: unix:///PATH. Only this user and root may connect to it.
    #[arg(long, value_name = "ENDPOINT", env = "CSI_ENDPOINT")]
    pub csi_endpoint: Option<Endpoint>,

    /// Also run the node's storage agent, using the API server in this kubeconfig.
    #[arg(long, value_name = "PATH", env = "BULKHEAD_KUBECONFIG", conflicts_with = "in_cluster", group = "agent")]
    pub kubeconfig: Option<PathBuf>,

    /// Directory in which the storage agent keeps the token that it renews for itself, when that of the kubeconfig's token
    /// file is about to expire. Without it, somebody has to replace that file.
    #[arg(long, value_name = "DIRECTORY", env = "BULKHEAD_STATE_DIR", requires = "kubeconfig")]
    pub state_dir: Option<PathBuf>,

    /// Also run the node's storage agent, using the service account of the pod this runs in.
    #[arg(long, env = "BULKHEAD_IN_CLUSTER", group = "agent")]
    pub in_cluster: bool,

    /// Namespace for the agent's own objects. Defaults to that of the service account or of the kubeconfig's context.
    #[arg(long, value_name = "NAME", env = "BULKHEAD_NAMESPACE")]
    pub namespace: Option<String>,

    /// Pools that this node may lack, separated by commas: one that is not there is reported as absent, and is no failure
    /// while nobody needs a volume in it.
    #[arg(long, value_name = "NAMES", env = "BULKHEAD_OPTIONAL_POOLS", value_delimiter = ',')]
    pub optional_pools: Vec<PoolName>,

    /// Serve metrics and probes by HTTP at this address, without authentication: /metrics, /healthz and /readyz. An IP
    /// address and a port, or :PORT for all addresses.
    #[arg(long, value_name = "ADDRESS:PORT", env = "BULKHEAD_METRICS_ADDRESS")]
    pub metrics_address: Option<ListenAddress>,

    /// Also serve at --metrics-address, as /volumes/owners, to which claim each volume belongs, for `kubectl bulkhead
    /// adopt`. Anyone who can reach the port can read it.
    #[arg(long, requires = "metrics_address", env = "BULKHEAD_SHARE_OWNERS", value_parser = clap::builder::FalseyValueParser::new())]
    pub share_owners: bool,

    /// Serve at this address, by gRPC over TLS, which blocks of the node's snapshots hold data or have changed, as Kubernetes'
    /// SnapshotMetadata service for backup programs (cbt.storage.k8s.io): an IP address and a port, or :PORT for all addresses.
    /// Callers are known by their tokens. All agents have to serve at the same port.
    #[arg(long, value_name = "ADDRESS:PORT", env = "BULKHEAD_SNAPSHOT_METADATA_ADDRESS", requires_all = ["agent", "snapshot_metadata_certificate"])]
    pub snapshot_metadata_address: Option<ListenAddress>,

    /// Directory with the certificate of --snapshot-metadata-address and its key, tls.crt and tls.key. They are read again when
    /// they change.
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "BULKHEAD_SNAPSHOT_METADATA_CERTIFICATE",
        requires = "snapshot_metadata_address"
    )]
    pub snapshot_metadata_certificate: Option<PathBuf>,

    /// Limit what one namespace may have of this node to this part of each pool's room, and of the filesystems in images that
    /// the pool may have: a whole percentage, such as 25%. Snapshots count. What namespaces have is shown by name at
    /// --metrics-address.
    #[arg(long, value_name = "PERCENT", env = "BULKHEAD_NAMESPACE_SHARE")]
    pub namespace_share: Option<Share>,

    /// Limit how many volumes and snapshots one namespace may have on this node. Defaults to the part of 20,000 that
    /// --namespace-share says.
    #[arg(long, value_name = "NUMBER", env = "BULKHEAD_NAMESPACE_VOLUMES", value_parser = clap::value_parser!(u32).range(1..))]
    pub namespace_volumes: Option<u32>,

    /// Divide the intervals at which the storage agent looks by itself, and for which it believes what it has seen, by this
    /// number, 60 at most: for tests. The API server gets as many times more requests.
    #[arg(long, value_name = "NUMBER", env = "BULKHEAD_DIVIDE_INTERVALS", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=60))]
    pub divide_intervals: u32,

    /// Only test whether the privileged helper answers, and exit with 0 if it does: for startup probes.
    #[arg(long)]
    pub probe: bool,

    /// Whether this process gives up the system calls, files and ports that it does not need: enforce or off.
    #[arg(long, value_name = "MODE", env = "BULKHEAD_SANDBOX", default_value = "enforce", hide_possible_values = true)]
    pub sandbox: Sandbox,

    /// Format of the log on standard error: text or json.
    #[arg(long, value_name = "FORMAT", env = "BULKHEAD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Log level: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", env = "BULKHEAD_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

impl Options {
    /// How to reach the API server, if the agent is to run.
    pub fn access(&self) -> Option<ApiServer> {
        match &self.kubeconfig {
            Some(file) => Some(ApiServer::kubeconfig(file.clone(), self.state_dir.clone())),
            None => self.in_cluster.then_some(ApiServer::InCluster),
        }
    }

    /// Where changed blocks are served, and the directory with the certificate, if they are.
    pub fn changed_blocks(&self) -> Option<(ListenAddress, PathBuf)> {
        self.snapshot_metadata_address.zip(self.snapshot_metadata_certificate.clone())
    }

    /// What one namespace may have of the node.
    pub fn limits(&self) -> Limits {
        Limits { share: self.namespace_share, volumes: self.namespace_volumes }
    }

    /// The files and ports that serving needs.
    pub fn needs(&self) -> Needs {
        let mut needs = Needs { ports: Some(Vec::new()), ..Needs::default() };
        let own_socket = self.csi_endpoint.as_ref().and_then(|endpoint| endpoint.path().parent());
        needs.sockets.extend(own_socket.map(PathBuf::from));
        if let Some(access) = self.access() {
            access.add_needs(&mut needs);
        }
        if let Some((address, directory)) = self.changed_blocks() {
            needs.read.push(directory);
            // Of the other agents.
            needs.ports.iter_mut().for_each(|ports| ports.push(address.port()));
        }
        needs
    }
}

fn node_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > LONGEST_NODE_ID {
        Err(format!("a node's name must have 1 to {LONGEST_NODE_ID} bytes"))
    } else {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn changed_blocks_are_served_by_agents_to_others_at_one_port() {
        let parse = |flags: &[&str]| {
            let fixed = ["bulkhead-frontend", "--helper-socket=/run/h.sock", "--node-id=here"];
            Options::try_parse_from(fixed.iter().chain(flags).copied())
        };
        let address = "--snapshot-metadata-address=:9809";
        let certificate = "--snapshot-metadata-certificate=/run/certificate";
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let server = "{server: 'https://10.0.0.1:6443', certificate-authority-data: YQ==}";
        std::fs::write(&kubeconfig, format!("clusters: [{{name: a, cluster: {server}}}]\n")).unwrap();
        let agent = format!("--kubeconfig={}", kubeconfig.display());
        for incomplete in [&[address][..], &[certificate], &[address, certificate], &[address, &agent]] {
            assert!(parse(incomplete).is_err(), "{incomplete:?}");
        }
        let needs = parse(&[address, certificate, &agent]).unwrap().needs();
        assert!(needs.read.contains(&"/run/certificate".into()));
        assert_eq!(needs.ports, Some(vec![6443, 9809]));
        let needs = parse(&[&agent]).unwrap().needs();
        assert_eq!(needs.ports, Some(vec![6443]));
        assert!(!needs.read.contains(&"/run/certificate".into()));
    }

    #[test]
    fn the_manual_page_explains_every_flag_and_variable_and_no_other() {
        let page = include_str!("../../deploy/man/bulkhead-frontend.8").replace("\\-", "-");
        let mut command = Options::command();
        command.build();
        let mut variables = Vec::new();
        for flag in command.get_arguments() {
            let name = flag.get_long().unwrap();
            let [heading, second] = [format!(".TP\n\\fB--{name}\\fR"), format!(", \\fB--{name}\\fR")];
            assert!(page.contains(&heading) || page.contains(&second), "--{name}");
            variables.extend(flag.get_env().map(|variable| variable.to_str().unwrap().to_owned()));
        }
        let (_, options) = page.split_once("\n.SH OPTIONS\n").unwrap();
        let (options, _) = options.split_once("\n.SH ").unwrap();
        let is_variable = |word: &&str| word.starts_with("BULKHEAD_") || word.starts_with("CSI_");
        let words = options.split(|other: char| !other.is_ascii_alphanumeric() && other != '_');
        assert_eq!(words.filter(is_variable).collect::<Vec<_>>(), variables);
        assert_eq!(options.matches("\n.TP\n").count(), command.get_arguments().count() - 1, "help and version are one");
        for section in ["\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "EXAMPLES"] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{section}");
        }
    }
}
