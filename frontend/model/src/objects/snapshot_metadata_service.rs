//! Reading a SnapshotMetadataService: how backup programs find out what has changed in a driver's snapshots. An agent
//! reads what they read, so that there is one place where it is said.

use std::borrow::Cow;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::{Deserialize, Serialize};
use kube::Resource;
use kube::core::ClusterResourceScope;

/// The object, as far as it is read. It has the driver's name. Its API group is not one of Kubernetes itself, and may be
/// absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct SnapshotMetadataService {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What it says.
    pub spec: ServiceSpec,
}

/// What clients have to know.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// Where the service is: a name or an address, and a port.
    pub address: String,
    /// For whom tokens have to be made that are sent to it.
    pub audience: String,
    /// Whom to trust to say who it is, as PEM.
    pub ca_cert: ByteString,
}

impl ServiceSpec {
    /// The name or address by which its certificates know it.
    pub fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl Resource for SnapshotMetadataService {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "SnapshotMetadataService".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "cbt.storage.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "snapshotmetadataservices".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_known_by_its_host() {
        for (address, host) in [
            ("blocks.storage.svc:6443", "blocks.storage.svc"),
            ("192.0.2.1:6443", "192.0.2.1"),
            ("[2001:db8::1]:6443", "2001:db8::1"),
            ("blocks", "blocks"),
        ] {
            let spec = ServiceSpec { address: address.to_owned(), ..ServiceSpec::default() };
            assert_eq!(spec.host(), host);
        }
    }

    #[test]
    fn the_authority_is_in_base64() {
        let text = r#"{ "spec": { "address": "a:1", "audience": "b", "caCert": "YWJj" } }"#;
        let service: SnapshotMetadataService = serde_json::from_str(text).unwrap();
        assert_eq!((service.spec.ca_cert.0.as_slice(), service.spec.audience.as_str()), (b"abc".as_slice(), "b"));
    }
}
