//! TLS, with rustls.

use std::{fs, io, path::PathBuf, sync::Arc};

use futures_rustls::{
    TlsConnector,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    rustls::{self, ClientConfig, RootCertStore, crypto::ring},
};

use crate::runtime::{BoxStream, unblock};

/// Speaks TLS over a stream, with whom the certificates of a file, or else the system's, vouch for.
pub(super) async fn connect(
    stream: BoxStream,
    host: &str,
    ca_file: Option<PathBuf>,
) -> Result<BoxStream, String> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| format!("{host} is no name that a certificate could have"))?;
    let roots = unblock(move || roots(ca_file)).await;
    let roots =
        roots.unwrap_or_else(|| Err("the thread that reads certificates panicked".into()))?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    match connector.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(in_words(host, &error)),
    }
}

fn roots(ca_file: Option<PathBuf>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca_file {
        let shown = path.display();
        let pem = fs::read(&path);
        let pem = pem.map_err(|error| format!("cannot read the CA file {shown}: {error}"))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate
                .map_err(|error| format!("the CA file {shown} holds no certificates: {error}"))?;
            roots
                .add(certificate)
                .map_err(|error| format!("a certificate in {shown} is of no use: {error}"))?;
        }
        if roots.is_empty() {
            return Err(format!("the CA file {shown} holds no certificate"));
        }
        return Ok(roots);
    }
    let found = rustls_native_certs::load_native_certs();
    // A system has some that nobody can read.
    roots.add_parsable_certificates(found.certs);
    match (roots.is_empty(), found.errors.first()) {
        (false, _) => Ok(roots),
        (true, Some(error)) => Err(format!("the system's certificates cannot be read: {error}")),
        (true, None) => Err("the system has no certificates: name a CA file".into()),
    }
}

fn in_words(host: &str, error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("the certificate of {host} is not trusted: {why}")
        }
        _ => format!("no TLS with {host}: {error}"),
    }
}
