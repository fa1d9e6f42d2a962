//! Whether a certificate is valid today. Nobody else here looks at its dates: a server shows whatever certificate it has, and
//! its clients refuse it.

use std::sync::Arc;

use tokio_rustls::rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{Error, RootCertStore};

/// Why clients would refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outdated {
    /// It was valid.
    #[error("the certificate has expired")]
    Expired,
    /// It will be valid.
    #[error("the certificate is not valid yet, or the node's clock is wrong")]
    NotYet,
}

/// Checks that it is valid now, as a client would. Who has signed it, and for which name, is not looked at: its dates are
/// judged before anything else.
pub fn check(certificate: &CertificateDer<'_>) -> Result<(), Outdated> {
    check_at(certificate, UnixTime::now())
}

fn check_at(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Outdated> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates([certificate.clone().into_owned()]);
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider())).build();
    let (Ok(verifier), Ok(name)) = (verifier, ServerName::try_from("any.invalid")) else { return Ok(()) };
    match verifier.verify_server_cert(certificate, &[], &name, &[], now) {
        Err(Error::InvalidCertificate(Expired | ExpiredContext { .. })) => Err(Outdated::Expired),
        Err(Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. })) => Err(Outdated::NotYet),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn dates_count_whoever_has_signed_it_and_for_whatever_name() {
        let key = || KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(CertificateParams::default(), key()).unwrap();
        let mut parameters = CertificateParams::new(["blocks.example.org".to_owned()]).unwrap();
        (parameters.not_before, parameters.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        let own = parameters.self_signed(&key()).unwrap();
        let signed = parameters.signed_by(&key(), &authority).unwrap();
        // Whole years of 365 days, so that it is not exact.
        let in_year = |year: u64| UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 365 * 86_400));
        for certificate in [own.der(), signed.der()] {
            assert_eq!(check_at(certificate, in_year(2000)), Err(Outdated::NotYet));
            assert_eq!(check_at(certificate, UnixTime::since_unix_epoch(Duration::from_secs(993_000_000))), Ok(()));
            assert_eq!(check_at(certificate, in_year(2004)), Err(Outdated::Expired));
            assert_eq!(check(certificate), Err(Outdated::Expired));
        }
    }
}
