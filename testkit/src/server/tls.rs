//! A server with TLS and a generated certificate.
//!
//! Every server has a certificate authority of its own, so that clients of one server do not trust another. A plain port
//! stays open for the test itself; the URL names the TLS port.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use redis::{Client, TlsCertificates};

use super::redis_process::{Options, RedisProcess};

/// A server and the certificate authority of its certificate.
#[derive(Debug)]
pub struct TlsServer {
    server: RedisProcess,
    authority: String,
}

impl TlsServer {
    /// Starts a server with a certificate for `localhost` and 127.0.0.1.
    pub async fn start() -> Self {
        Self::with(Options::new(), server_params()).await
    }

    /// Starts a server whose certificate expired in 2001.
    pub async fn expired() -> Self {
        let mut params = server_params();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        Self::with(Options::new(), params).await
    }

    /// Starts a server with options and a custom certificate.
    pub async fn with(options: Options, certificate: CertificateParams) -> Self {
        install_crypto_provider();
        let (authority, certificate, key) = issue(certificate);
        let options = Options::new()
            .port("tls-port")
            .file("server.crt", certificate)
            .file("server.key", key)
            .file("ca.crt", authority.clone())
            .set("tls-cert-file", &["server.crt"])
            .set("tls-key-file", &["server.key"])
            .set("tls-ca-cert-file", &["ca.crt"])
            .set("tls-auth-clients", &["no"])
            .merge(options);
        Self { server: RedisProcess::with(options).await, authority }
    }

    /// Returns the server, for use through its plain port.
    pub fn server(&self) -> &RedisProcess {
        &self.server
    }

    /// Returns its TLS URL.
    pub fn url(&self) -> String {
        format!("rediss://localhost:{}", self.server.port_of("tls-port"))
    }

    /// Returns the certificate of the authority, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.authority
    }

    /// Returns a client that trusts this authority.
    pub fn client(&self) -> Client {
        self.client_that_trusts(&self.authority)
    }

    /// Returns a client that trusts only the given authority.
    pub fn client_that_trusts(&self, authority: &str) -> Client {
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(authority.as_bytes().to_vec()) };
        Client::build_with_tls(self.url(), certificates).expect("a valid client")
    }
}

/// Installs one crypto provider: rustls panics if the features of other crates enable several and none is chosen.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn server_params() -> CertificateParams {
    CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("valid host names")
}

/// Returns the authority, a certificate signed by it and its key, as PEM.
fn issue(certificate: CertificateParams) -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "phalanx test authority");
    let authority_key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&authority_key).expect("an authority").pem();
    let key = KeyPair::generate().expect("a key");
    let signed = certificate.signed_by(&key, &Issuer::new(params, authority_key)).expect("a certificate");
    (authority, signed.pem(), key.serialize_pem())
}
