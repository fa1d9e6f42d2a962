//! The certificate that the service shows its clients, and its key: two files that somebody renews.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ServerConfig};
use tracing::{info, warn};

/// The files, as a Secret of the type kubernetes.io/tls names them.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// How long they are believed once they were read: they may be replaced at any time.
const BELIEVED: Duration = Duration::from_secs(10);

/// What gRPC speaks.
pub const HTTP2: &[u8] = b"h2";

/// The certificate.
#[derive(Debug)]
pub struct Certificate {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What was read when.
    read: Option<(Instant, Files)>,
    /// What was made of the latest files that can be used.
    usable: Option<Arc<ServerConfig>>,
}

#[derive(PartialEq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{0} cannot be read: {1}")]
    File(PathBuf, io::Error),
    #[error("{0} is not in the format PEM: {1}")]
    Pem(&'static str, pem::Error),
    #[error("the certificate and the key do not go together: {0}")]
    Pair(#[from] rustls::Error),
}

impl std::fmt::Debug for Files {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Files")
    }
}

impl Certificate {
    /// That of the files in `directory`.
    pub fn in_directory(directory: PathBuf) -> Self {
        Self { directory, state: Mutex::default() }
    }

    /// Returns what speaks for the service now; `None` if there is no certificate yet.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.as_ref().is_none_or(|(at, _)| at.elapsed() >= BELIEVED) {
            self.look(&mut state);
        }
        state.usable.clone().map(TlsAcceptor::from)
    }

    /// Reads the files. Until there are others that can be used, the former ones are.
    fn look(&self, state: &mut State) {
        let files = match self.read() {
            Ok(files) => files,
            Err(why) => return self.complain(state, Files { certificate: Vec::new(), key: Vec::new() }, &why),
        };
        let is_known = state.read.as_ref().is_some_and(|(_, known)| *known == files);
        match config(&files) {
            _ if is_known => state.read = Some((Instant::now(), files)),
            Ok(config) => {
                if state.usable.is_some() {
                    info!("the certificate for changed blocks was renewed");
                }
                *state = State { read: Some((Instant::now(), files)), usable: Some(Arc::new(config)) };
            }
            Err(why) => self.complain(state, files, &why),
        }
    }

    /// Says, once for the same files, why they are not used.
    fn complain(&self, state: &mut State, files: Files, why: &Unusable) {
        if state.read.as_ref().is_none_or(|(_, known)| *known != files) {
            let until_then = if state.usable.is_some() { "the former one is used" } else { "clients are turned away" };
            let directory = self.directory.display();
            warn!(
                "the certificate for changed blocks in {directory} cannot be used: {why}; until it can be, {until_then}"
            );
        }
        state.read = Some((Instant::now(), files));
    }

    fn read(&self) -> Result<Files, Unusable> {
        let read = |name: &str| {
            let file = self.directory.join(name);
            fs::read(&file).map_err(|error| Unusable::File(file, error))
        };
        Ok(Files { certificate: read(CERTIFICATE)?, key: read(KEY)? })
    }
}

fn config(files: &Files) -> Result<ServerConfig, Unusable> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&files.certificate).collect();
    let certificates = certificates.map_err(|error| Unusable::Pem(CERTIFICATE, error))?;
    let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| Unusable::Pem(KEY, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS13])?.with_no_client_auth();
    let mut config = builder.with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::generate_simple_self_signed;

    use super::*;

    fn write(directory: &Path) {
        let made = generate_simple_self_signed(["blocks.example.org".to_owned()]).unwrap();
        fs::write(directory.join(CERTIFICATE), made.cert.pem()).unwrap();
        fs::write(directory.join(KEY), made.signing_key.serialize_pem()).unwrap();
    }

    /// As if what was read were not believed any more.
    fn forget(certificate: &Certificate) {
        let mut state = certificate.state.lock().unwrap();
        if let Some((at, _)) = &mut state.read {
            *at -= BELIEVED;
        }
    }

    fn used(certificate: &Certificate) -> Option<Arc<ServerConfig>> {
        forget(certificate);
        certificate.acceptor().map(|acceptor| Arc::clone(acceptor.config()))
    }

    #[test]
    fn the_files_are_read_anew_and_bad_ones_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let certificate = Certificate::in_directory(directory.path().to_owned());
        assert!(used(&certificate).is_none(), "there is none yet");
        write(directory.path());
        let first = used(&certificate).unwrap();
        assert!(Arc::ptr_eq(&first, &used(&certificate).unwrap()), "they are the same");
        write(directory.path());
        let second = used(&certificate).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        let key = fs::read(directory.path().join(KEY)).unwrap();
        write(directory.path());
        fs::write(directory.path().join(KEY), key).unwrap();
        assert!(Arc::ptr_eq(&second, &used(&certificate).unwrap()), "they do not go together");
        fs::remove_file(directory.path().join(KEY)).unwrap();
        assert!(Arc::ptr_eq(&second, &used(&certificate).unwrap()));
        write(directory.path());
        assert!(!Arc::ptr_eq(&second, &used(&certificate).unwrap()));
    }
}
