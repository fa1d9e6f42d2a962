//! The certificate that the service shows its clients, and its key: two files that somebody renews.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ServerConfig};
use tracing::{info, warn};

use super::dates::{self, Outdated};
use crate::readiness::{Part, Readiness};

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
    readiness: Readiness,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What was read when.
    read: Option<(Instant, Files)>,
    /// What was made of the latest files that can be used.
    usable: Option<Usable>,
    /// What is wrong with the files.
    flaw: Option<String>,
}

#[derive(Debug)]
struct Usable {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

#[derive(Default, PartialEq)]
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
    #[error("{CERTIFICATE} has no certificate")]
    Empty,
    #[error("the certificate and the key do not go together: {0}")]
    Pair(#[from] rustls::Error),
    #[error(transparent)]
    Dates(#[from] Outdated),
}

impl std::fmt::Debug for Files {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Files")
    }
}

impl Certificate {
    /// That of the files in `directory`. Whether it can be used is recorded in `readiness`.
    pub fn in_directory(directory: PathBuf, readiness: Readiness) -> Self {
        Self { directory, readiness, state: Mutex::default() }
    }

    /// Looks at the files for as long as it is polled, whether there are clients or not.
    pub async fn watch(&self) -> Infallible {
        loop {
            self.acceptor();
            sleep(BELIEVED).await;
        }
    }

    /// Returns what speaks for the service now; `None` if there is no certificate that clients would accept.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.as_ref().is_none_or(|(at, _)| at.elapsed() >= BELIEVED) {
            self.look(&mut state);
        }
        state.usable.as_ref().map(|usable| TlsAcceptor::from(Arc::clone(&usable.config)))
    }

    /// Reads the files. Until there are others that can be used, the former ones are, while they are valid.
    fn look(&self, state: &mut State) {
        state.usable.take_if(|usable| dates::check(&usable.certificate).is_err());
        let (files, made) = match self.read() {
            Ok(files) => {
                let made = Usable::of(&files);
                (files, made)
            }
            Err(why) => (Files::default(), Err(why)),
        };
        let is_known = state.read.as_ref().is_some_and(|(_, known)| *known == files);
        state.read = Some((Instant::now(), files));
        match made {
            Ok(_) if is_known && state.usable.is_some() => {}
            Ok(usable) => {
                if state.usable.replace(usable).is_some() || state.flaw.is_some() {
                    info!("the certificate for changed blocks was renewed");
                }
                state.flaw = None;
                self.readiness.ready(Part::ChangedBlocks);
            }
            Err(why) => self.complain(state, &why),
        }
    }

    /// Says why the files are not used: in the log, once for the same reason.
    fn complain(&self, state: &mut State, why: &Unusable) {
        let until_then = if state.usable.is_some() { "the former one is used" } else { "clients are turned away" };
        let directory = self.directory.display();
        let flaw = format!(
            "the certificate for changed blocks in {directory} cannot be used: {why}; until it can be, {until_then}: correct {CERTIFICATE} and {KEY} there, or the Secret that they come from; they are read again within a minute or two"
        );
        if state.flaw.as_ref() != Some(&flaw) {
            warn!("{flaw}");
        }
        self.readiness.not_ready(Part::ChangedBlocks, &flaw);
        state.flaw = Some(flaw);
    }

    fn read(&self) -> Result<Files, Unusable> {
        let read = |name: &str| {
            let file = self.directory.join(name);
            fs::read(&file).map_err(|error| Unusable::File(file, error))
        };
        Ok(Files { certificate: read(CERTIFICATE)?, key: read(KEY)? })
    }
}

impl Usable {
    fn of(files: &Files) -> Result<Self, Unusable> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&files.certificate).collect();
        let certificates = certificates.map_err(|error| Unusable::Pem(CERTIFICATE, error))?;
        let certificate = certificates.first().ok_or(Unusable::Empty)?.clone();
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| Unusable::Pem(KEY, error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_protocol_versions(&[&TLS13])?.with_no_client_auth();
        let mut config = builder.with_single_cert(certificates, key)?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        dates::check(&certificate)?;
        Ok(Self { config: Arc::new(config), certificate })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn write(directory: &Path) {
        write_ending(directory, 4096);
    }

    /// Writes a new certificate that is valid until this year begins, and its key.
    fn write_ending(directory: &Path, year: i32) {
        let mut parameters = CertificateParams::new(["blocks.example.org".to_owned()]).unwrap();
        parameters.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        fs::write(directory.join(CERTIFICATE), parameters.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(directory.join(KEY), key.serialize_pem()).unwrap();
    }

    fn certificate(directory: &Path) -> Certificate {
        Certificate::in_directory(directory.to_owned(), Readiness::default())
    }

    /// What is said of it, or nothing.
    fn flaw(certificate: &Certificate) -> String {
        certificate.readiness.state(Part::ChangedBlocks).unwrap().err().unwrap_or_default()
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
        let certificate = certificate(directory.path());
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
    #[test]
    fn what_is_wrong_is_said_until_it_is_corrected() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, path) = (certificate(directory.path()), directory.path());
        let says = |part: &str, is_used: bool| {
            assert_eq!(used(&certificate).is_some(), is_used, "{part}");
            let flaw = flaw(&certificate);
            assert!(flaw.contains(part) && flaw.is_empty() == part.is_empty(), "{part}: {flaw}");
            let consequence = if is_used { "the former one is used" } else { "clients are turned away" };
            assert!(flaw.is_empty() || flaw.contains(consequence), "{flaw}");
        };
        says("tls.crt cannot be read: No such file", false);
        write_ending(path, 2000);
        says("the certificate has expired", false);
        write(path);
        says("", true);
        write_ending(path, 2000);
        says("the certificate has expired", true);
        fs::write(path.join(CERTIFICATE), "").unwrap();
        says("tls.crt has no certificate", true);
        let other = tempfile::tempdir().unwrap();
        write(other.path());
        fs::copy(other.path().join(CERTIFICATE), path.join(CERTIFICATE)).unwrap();
        says("do not go together", true);
        fs::copy(other.path().join(KEY), path.join(KEY)).unwrap();
        says("", true);
    }
}
