//! Finds the frontend's socket in the places where deployments put it.

use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_frontend::endpoint::Endpoint;

/// The helper's configuration, on the host and in the helper's container.
const CONFIGURATION: &str = "/etc/bulkhead/privhelper.conf";

/// Default paths of the socket: with a kubelet, and, as documented, without one.
const USUAL: [&str; 2] = ["/var/lib/kubelet/plugins/bulkhead.csi.local/csi.sock", "/run/bulkhead/csi.sock"];

/// Which process answers.
pub enum Server {
    /// The frontend, on this socket.
    Frontend(Endpoint),
    /// The helper on this socket, through the frontend's code in this process.
    Helper(PathBuf),
}

impl Server {
    /// The server named on the command line, or else this node's frontend.
    pub fn find(endpoint: Option<Endpoint>, helper: Option<PathBuf>) -> Self {
        match (endpoint, helper) {
            (Some(endpoint), _) => Self::Frontend(endpoint),
            (None, Some(helper)) => Self::Helper(helper),
            (None, None) => Self::Frontend(self::endpoint()),
        }
    }
}

/// The socket of this node's frontend.
fn endpoint() -> Endpoint {
    // Users who may not read it may not connect either; the attempt to connect reports that.
    let configured = fs::read_to_string(CONFIGURATION).ok().and_then(|text| configured(&text));
    configured.unwrap_or_else(|| {
        let there = USUAL.iter().map(Path::new).find(|path| path.exists());
        Endpoint::from(there.unwrap_or(Path::new(USUAL[0])).to_owned())
    })
}

/// The CSI socket of a helper with these flags, one per line.
fn configured(text: &str) -> Option<Endpoint> {
    let flag = |name: &str| {
        let lines = text.lines().map(str::trim).filter_map(|line| line.split_once([' ', '\t', '=']));
        lines.filter(|(flag, _)| *flag == name).map(|(_, value)| value.trim()).next_back()
    };
    let of_kubelet = || {
        let driver = flag("--driver-name").unwrap_or("bulkhead.csi.local");
        Some(Path::new(flag("--kubelet-dir")?).join(format!("plugins/{driver}/csi.sock")))
    };
    flag("--csi-socket").map(PathBuf::from).or_else(of_kubelet).map(Endpoint::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helpers_configuration_names_the_socket() {
        let path = |text| configured(text).map(|endpoint| endpoint.path().display().to_string());
        let kubelet = "# flags\n--pool default=/srv/bulkhead/default\n--kubelet-dir /var/lib/kubelet\n";
        assert_eq!(path(kubelet).as_deref(), Some(USUAL[0]));
        let other = "  --kubelet-dir=/var/lib/k0s/kubelet\n--driver-name\tdisk.example.com\n";
        assert_eq!(path(other).as_deref(), Some("/var/lib/k0s/kubelet/plugins/disk.example.com/csi.sock"));
        let given = format!("{kubelet}--csi-socket /run/csi.sock\n");
        assert_eq!(path(&given).as_deref(), Some("/run/csi.sock"));
        assert_eq!(path("--pool default=/srv/bulkhead/default\n#--csi-socket /run/csi.sock\n"), None);
    }
}
