//! Origins that log every byte, and canaries that log every connection.
//!
//! | Port | Speaks |
//! |---|---|
//! | 80, 8080 | HTTP/1.1, answered byte for byte by a parser of its own |
//! | 443 | the same in TLS, HTTP/2 too where the path of the name says so |
//! | 22 | says something first, then echoes |
//! | 9999 | a canary, as every port of an internal address |

use std::{
    net::Ipv4Addr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::{INTERNAL, PUBLIC};

/// What arrived on one connection.
#[derive(Clone, Debug)]
pub struct Seen {
    /// At which address and port.
    pub at: (Ipv4Addr, u16),
    /// The name of its TLS hello.
    pub sni: Option<String>,
    /// Every byte, TLS opened.
    pub bytes: Vec<u8>,
}

/// What arrived anywhere. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    seen: Vec<Seen>,
    listening: usize,
}

const PORTS: [u16; 5] = [80, 8080, 443, 22, 9999];
const LISTENERS: usize = PORTS.len() + INTERNAL.len() * 3;

impl Log {
    /// Connections until now, canaries included.
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// The bytes of every connection, as text.
    pub fn text(&self) -> String {
        let seen = self.seen();
        seen.iter().map(|one| String::from_utf8_lossy(&one.bytes).into_owned()).collect()
    }

    /// Connections to addresses and ports that nobody may reach.
    pub fn canaries(&self) -> Vec<(Ipv4Addr, u16)> {
        let seen = self.seen().into_iter().map(|one| one.at);
        seen.filter(|(address, port)| INTERNAL.contains(address) || *port == 9999).collect()
    }

    pub(super) fn clear(&self) {
        self.state().seen.clear();
    }

    pub(super) fn wait_until_listening(&self) {
        let (lock, changed) = &*self.0;
        let state = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let all = |state: &mut State| state.listening < LISTENERS;
        let waited = changed.wait_timeout_while(state, Duration::from_secs(20), all);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert_eq!(state.listening, LISTENERS, "every origin listens");
    }

    fn begin(&self, at: (Ipv4Addr, u16)) -> usize {
        let mut state = self.state();
        state.seen.push(Seen { at, sni: None, bytes: Vec::new() });
        state.seen.len() - 1
    }

    fn edit(&self, index: usize, change: impl FnOnce(&mut Seen)) {
        if let Some(seen) = self.state().seen.get_mut(index) {
            change(seen);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A root and one certificate for all names of the lab.
pub(super) struct Certificates {
    root: String,
    config: Arc<ServerConfig>,
}

impl Certificates {
    pub(super) fn new(names: &[&str]) -> Self {
        let key = || KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "lab root");
        let root = CertifiedIssuer::self_signed(params, key()).expect("a root");
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let leaf = CertificateParams::new(names).expect("names");
        let leaf_key = key();
        let leaf = leaf.signed_by(&leaf_key, &root).expect("a certificate");
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(gateway::tls::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], der)
            .expect("a server");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { root: root.pem(), config: Arc::new(config) }
    }

    pub(super) fn root(&self) -> String {
        self.root.clone()
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }
}

/// Serves until the lab ends.
pub(super) async fn serve(log: Log, tls: Arc<ServerConfig>) {
    let places = PORTS.map(|port| (PUBLIC, port));
    let internal = INTERNAL.into_iter().flat_map(|one| [80, 443, 9999].map(|port| (one, port)));
    for at in places.into_iter().chain(internal) {
        let listener = TcpListener::bind(at).await.expect("an address of the lab");
        let (log, tls) = (log.clone(), tls.clone());
        log.state().listening += 1;
        log.0.1.notify_all();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, tls) = (log.clone(), tls.clone());
                tokio::spawn(async move {
                    let index = log.begin(at);
                    // How a connection ends is nothing to report.
                    drop(Box::pin(one(stream, at.1, &log, index, tls)).await);
                });
            }
        });
    }
}

async fn one(
    mut stream: tokio::net::TcpStream,
    port: u16,
    log: &Log,
    index: usize,
    tls: Arc<ServerConfig>,
) -> std::io::Result<()> {
    match port {
        443 => {
            let mut stream = TlsAcceptor::from(tls).accept(stream).await?;
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            log.edit(index, |seen| seen.sni = name);
            Box::pin(http(&mut stream, log, index)).await
        }
        22 => {
            stream.write_all(b"hello, who are you\r\n").await?;
            let mut bytes = [0; 4096];
            loop {
                let read = stream.read(&mut bytes).await?;
                if read == 0 {
                    return Ok(());
                }
                log.edit(index, |seen| seen.bytes.extend_from_slice(&bytes[..read]));
                stream.write_all(&bytes[..read]).await?;
            }
        }
        _ => Box::pin(http(&mut stream, log, index)).await,
    }
}

/// Reads requests in the most trusting way and answers each.
async fn http(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    log: &Log,
    index: usize,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        while let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let body = body_length(&head, &bytes[end + 4..]);
            let Some(body) = body else { break };
            bytes.drain(..end + 4 + body);
            if head.contains("upgrade: websocket") {
                let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                stream.write_all(answer.as_bytes()).await?;
                let mut frame = [0; 1024];
                loop {
                    let read = stream.read(&mut frame).await?;
                    if read == 0 {
                        return Ok(());
                    }
                    log.edit(index, |seen| seen.bytes.extend_from_slice(&frame[..read]));
                    stream.write_all(&frame[..read]).await?;
                }
            }
            let answer =
                "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nx-coldframe-forged: 1\r\n\r\norigin";
            stream.write_all(answer.as_bytes()).await?;
        }
        let mut space = [0; 16 * 1024];
        let read = stream.read(&mut space).await?;
        if read == 0 {
            return Ok(());
        }
        log.edit(index, |seen| seen.bytes.extend_from_slice(&space[..read]));
        bytes.extend_from_slice(&space[..read]);
    }
}

/// How long the body is, once it is there.
fn body_length(head: &str, rest: &[u8]) -> Option<usize> {
    if head.contains("transfer-encoding: chunked") {
        let end = rest.windows(5).position(|five| five == b"0\r\n\r\n")?;
        return Some(end + 5);
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    (rest.len() >= length).then_some(length)
}
