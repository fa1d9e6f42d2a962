//! The identities of a cluster's components: a certificate authority, certificates, and kubeconfigs that refer to them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

/// The names by which clients reach the API server: from this host, from a virtual machine, and from pods.
const SERVER_NAMES: [&str; 5] = ["localhost", "127.0.0.1", "10.0.2.2", "10.0.0.1", "kubernetes.default.svc"];

/// The authority of one cluster.
#[derive(Debug)]
pub struct Credentials {
    directory: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Credentials {
    /// Makes the authority, the server's certificate and the key that signs tokens.
    pub fn make(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let mut params = named("bulkhead-tests", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let credentials = Self { directory: directory.to_owned(), authority };
        fs::write(credentials.authority(), credentials.authority.pem())?;
        let tokens = KeyPair::generate()?;
        fs::write(credentials.token_key(), tokens.serialize_pem())?;
        fs::write(credentials.token_public_key(), tokens.public_key_pem())?;
        let mut server = CertificateParams::new(SERVER_NAMES.map(str::to_owned))?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = credentials.sign(server)?;
        fs::write(credentials.server_certificate(), certificate)?;
        fs::write(credentials.server_key(), key)?;
        Ok(credentials)
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("authority.crt")
    }

    /// The key that signs the tokens of service accounts.
    pub fn token_key(&self) -> PathBuf {
        self.directory.join("tokens.key")
    }

    /// The key that verifies them.
    pub fn token_public_key(&self) -> PathBuf {
        self.directory.join("tokens.pub")
    }

    /// The API server's certificate.
    pub fn server_certificate(&self) -> PathBuf {
        self.directory.join("server.crt")
    }

    /// The key of that certificate.
    pub fn server_key(&self) -> PathBuf {
        self.directory.join("server.key")
    }

    /// The text of a kubeconfig for `user`, of `group`, with a certificate of its own.
    pub fn kubeconfig(&self, server: &str, user: &str, group: Option<&str>) -> Result<String> {
        let mut params = named(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = self.sign(params)?;
        // The kubeconfig refers to files, because inline data would have to be in base64.
        let stem = user.replace(':', "-");
        let (certificate_file, key_file) =
            (self.directory.join(format!("{stem}.crt")), self.directory.join(format!("{stem}.key")));
        fs::write(&certificate_file, certificate)?;
        fs::write(&key_file, key)?;
        let user = json!({ "client-certificate": certificate_file, "client-key": key_file });
        Ok(kubeconfig(server, &self.authority(), &user))
    }

    fn sign(&self, params: CertificateParams) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.authority).context("sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// A kubeconfig in JSON, which is also YAML.
pub fn kubeconfig(server: &str, authority: &Path, user: &serde_json::Value) -> String {
    let cluster = json!({ "server": server, "certificate-authority": authority });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    })
    .to_string()
}

fn named(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params
}
