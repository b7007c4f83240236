//! A server behind TLS, with a certificate made on the spot.
//!
//! The authority is new every time, so that the certificate of one server proves nothing about another. A plain port
//! stays open for the test itself; it is not the port that the URL names.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use redis::{Client, TlsCertificates};

use super::spawned::{Options, Spawned};

/// The server and the authority that vouches for it.
#[derive(Debug)]
pub struct Tls {
    server: Spawned,
    authority: String,
}

impl Tls {
    /// A server whose certificate is good for `localhost` and 127.0.0.1.
    pub async fn start() -> Self {
        Self::with(Options::new(), server_params()).await
    }

    /// A server whose certificate was good, until 2001.
    pub async fn expired() -> Self {
        let mut params = server_params();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        Self::with(Options::new(), params).await
    }

    /// A server with options and a certificate of the test's own making.
    pub async fn with(options: Options, certificate: CertificateParams) -> Self {
        // Exactly one provider, chosen here: rustls panics when features of other crates leave it a choice.
        let _ = rustls::crypto::ring::default_provider().install_default();
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
            .and(options);
        Self { server: Spawned::with(options).await, authority }
    }

    /// The server itself, by its plain port.
    pub fn server(&self) -> &Spawned {
        &self.server
    }

    /// How clients reach it.
    pub fn url(&self) -> String {
        format!("rediss://localhost:{}", self.server.port_of("tls-port"))
    }

    /// The authority's certificate, which a client has to trust.
    pub fn ca_pem(&self) -> &str {
        &self.authority
    }

    /// A client that trusts this authority.
    pub fn client(&self) -> Client {
        self.client_that_trusts(&self.authority)
    }

    /// A client that trusts another one.
    pub fn client_that_trusts(&self, authority: &str) -> Client {
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(authority.as_bytes().to_vec()) };
        Client::build_with_tls(self.url(), certificates).expect("a client")
    }
}

fn server_params() -> CertificateParams {
    CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("two good names")
}

/// The authority, a certificate it signed and the key of that, in PEM.
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
