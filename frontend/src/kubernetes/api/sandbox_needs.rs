//! What the agent needs from this machine to reach its API server: files and ports. This is known before it connects.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use kube::config::Kubeconfig;

use super::server::ApiServer;
use crate::sandbox::{DOMAIN, Needs};

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What name resolution reads, and where the system's certificate authorities are.
const NAMES_AND_AUTHORITIES: [&str; 5] =
    ["/etc", "/run/systemd/resolve", "/usr/lib/ssl", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"];

impl ApiServer {
    /// Adds what this access needs. Files may be replaced later, but no others may be named, and the port must not
    /// change.
    pub fn add_needs(&self, needs: &mut Needs) {
        match self {
            Self::InCluster => {
                needs.read.push(SERVICE_ACCOUNT.into());
                let variable = |name: &str| std::env::var(name).ok();
                let host = variable("KUBERNETES_SERVICE_HOST");
                let port = variable("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok());
                reach_server(host.as_deref().unwrap_or_default(), port, true, needs);
            }
            Self::Kubeconfig { file, own } => {
                needs.read.extend(directories(file));
                needs.replace.extend(own.as_ref().map(|own| own.directory().to_owned()));
                match Kubeconfig::read_from(file) {
                    Ok(kubeconfig) => reach_servers(&kubeconfig, needs),
                    // It may be created later. Which port it will name is unknown.
                    Err(_) => reach_server("", None, false, needs),
                }
            }
        }
    }
}

fn reach_servers(kubeconfig: &Kubeconfig, needs: &mut Needs) {
    for user in kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()) {
        for file in [&user.token_file, &user.client_certificate, &user.client_key].into_iter().flatten() {
            needs.read.extend(directories(Path::new(file)));
        }
    }
    for cluster in kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref()) {
        if let Some(file) = &cluster.certificate_authority {
            needs.read.extend(directories(Path::new(file)));
        }
        let has_authority = cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some();
        let server = cluster.server.as_ref().and_then(|server| server.parse::<Uri>().ok());
        let port = server.as_ref().map(|server| match server.port_u16() {
            Some(port) => port,
            None if server.scheme_str() == Some("http") => 80,
            None => 443,
        });
        let host = server.as_ref().and_then(Uri::host).unwrap_or_default();
        reach_server(host, port, has_authority, needs);
    }
}

fn reach_server(host: &str, port: Option<u16>, has_authority: bool, needs: &mut Needs) {
    let is_name = host.trim_matches(['[', ']']).parse::<IpAddr>().is_err();
    if is_name || !has_authority {
        needs.read.extend(NAMES_AND_AUTHORITIES.map(PathBuf::from));
    }
    match (port, &mut needs.ports) {
        (Some(port), Some(ports)) => {
            ports.push(port);
            // A name server whose answer is long is queried again over TCP.
            ports.extend(is_name.then_some(DOMAIN));
        }
        (_, ports) => *ports = None,
    }
}

/// The directory of a file, in which it may be replaced, and that of the file that it links to.
fn directories(file: &Path) -> Vec<PathBuf> {
    let linked = file.canonicalize().ok();
    let parent = |path: &Path| path.parent().map(Path::to_path_buf);
    [parent(file), linked.as_deref().and_then(parent)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(server: &str, authority: &str) -> Needs {
        let text = format!(
            "clusters: [{{name: a, cluster: {{server: '{server}'{authority}}}}}]\n\
             users: [{{name: b, user: {{tokenFile: /run/token-directory/token}}}}]\n"
        );
        let mut needs = Needs { ports: Some(Vec::new()), ..Needs::default() };
        reach_servers(&Kubeconfig::from_yaml(&text).unwrap(), &mut needs);
        needs
    }

    #[test]
    fn a_server_with_an_address_and_an_authority_needs_no_more_than_the_files_that_are_named() {
        for (server, port) in [("https://10.0.0.1:6443", 6443), ("https://[fd00::1]", 443), ("http://10.0.0.1", 80)] {
            let found = needs(server, ", certificate-authority: /run/authority/ca.crt");
            assert_eq!(found.ports, Some(vec![port]), "{server}");
            assert_eq!(found.read, ["/run/token-directory", "/run/authority"].map(PathBuf::from), "{server}");
        }
    }

    #[test]
    fn a_name_is_resolved_and_the_systems_authorities_are_read() {
        let found = needs("https://api.example.org", ", certificate-authority-data: YQ==");
        assert_eq!(found.ports, Some(vec![443, DOMAIN]));
        assert!(found.read.contains(&"/etc".into()));
        let found = needs("https://10.0.0.1", "");
        assert_eq!(found.ports, Some(vec![443]));
        assert!(found.read.contains(&"/etc".into()));
    }

    #[test]
    fn a_kubeconfig_that_is_not_there_yet_may_name_any_port() {
        let mut needs = Needs { ports: Some(Vec::new()), ..Needs::default() };
        ApiServer::kubeconfig("/no/such/kubeconfig".into(), Some("/state".into())).add_needs(&mut needs);
        assert_eq!(needs.ports, None);
        assert!(needs.read.contains(&"/no/such".into()));
        assert_eq!(needs.replace, [PathBuf::from("/state")]);
    }
}
