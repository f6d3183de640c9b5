//! TLS towards a destination: verified against the roots of this host, or those
//! that the operator named, and against the name that was permitted.

use std::{io, sync::Arc, time::Duration};

use domain::host::Host;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::provider;

/// Whom to believe.
#[derive(Clone, Debug)]
pub enum Roots {
    /// The roots of this host.
    Platform,
    /// Those of a PEM text, and no others.
    These(Vec<u8>),
}

/// Why roots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The text holds no certificate, or one that is none.
    #[error("no certificates could be read")]
    Pem,
    /// The library would not.
    #[error("the roots cannot be used")]
    Tls(#[from] rustls::Error),
}

/// What may be spoken inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/2 where it is there, else HTTP/1.1.
    Either,
    /// HTTP/1.1.
    Http1,
}

/// Ready to connect.
#[derive(Clone, Debug)]
pub struct Trust {
    either: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl Trust {
    /// Reads the roots.
    pub fn new(roots: &Roots) -> Result<Self, TrustError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let mut config = match roots {
            Roots::Platform => {
                use rustls_platform_verifier::BuilderVerifierExt as _;
                builder.with_platform_verifier()?.with_no_client_auth()
            }
            Roots::These(pem) => {
                let mut store = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    store.add(certificate.map_err(|_| TrustError::Pem)?)?;
                }
                if store.is_empty() {
                    return Err(TrustError::Pem);
                }
                builder.with_root_certificates(store).with_no_client_auth()
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { either: Arc::new(config), http1 })
    }

    /// Opens TLS to `host` on a connection that leads there.
    pub async fn connect(
        &self,
        host: &Host,
        stream: TcpStream,
        offer: Offer,
        bound: Duration,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?,
            Host::Address(address) => ServerName::from(address.get()),
        };
        let config = match offer {
            Offer::Either => self.either.clone(),
            Offer::Http1 => self.http1.clone(),
        };
        timeout(bound, TlsConnector::from(config).connect(name, stream))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}
