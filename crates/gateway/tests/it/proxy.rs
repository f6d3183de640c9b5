//! C and the rest of the forward proxy: tunnels, plain requests, upgrades,
//! identity, and rules that change.

use std::sync::Arc;

use domain::id::SessionId;
use gateway::rules::{Exception, Others, Session, Upstream};
use guest_protocol::egress::Front;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use testkit::lab::{Client, PUBLIC};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;

/// A tunnel, open.
pub(crate) async fn tunnel(lab: &Lab, authority: &str) -> Client {
    let mut client = lab.open(Front::Proxy, Some(1000)).await;
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    client.send(request.as_bytes()).await.unwrap();
    let head = client.until(b"\r\n\r\n").await;
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    client
}

/// TLS in a tunnel, believing `root`.
pub(crate) async fn tls(
    client: Client,
    root: &str,
    name: &'static str,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<UnixStream>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let mut store = RootCertStore::empty();
    store.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(gateway::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|one| one.to_vec()).collect();
    let name = ServerName::try_from(name).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, client.stream).await
}

/// Sends a request and reads until the origin's answer is there.
pub(crate) async fn ask(
    stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    request: &str,
) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let mut space = [0; 4096];
    let bound = std::time::Duration::from_secs(10);
    while let Ok(Ok(read)) = tokio::time::timeout(bound, stream.read(&mut space)).await {
        bytes.extend_from_slice(&space[..read]);
        let text = String::from_utf8_lossy(&bytes);
        if read == 0 || text.ends_with("origin") || text.ends_with('}') {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// B19: what needs no look inside is spliced; the client sees the origin's own
/// certificate.
#[tokio::test]
async fn a_tunnel_is_spliced() {
    let Some(lab) = lab() else { return };
    let client = tunnel(&lab, "api.good.test:443").await;
    let mut stream = tls(client, &lab.root(), "api.good.test", &[]).await.unwrap();
    let answer = ask(&mut stream, "GET /x HTTP/1.1\r\nHost: api.good.test\r\n\r\n").await;
    assert!(answer.ends_with("origin"), "{answer}");
    drop(stream);
    let journal = lab.journal(1);
    assert_eq!(journal[0].destination.as_str(), "api.good.test:443");
    assert_eq!(journal[0].outcome.as_str(), "allowed");
    assert!(journal[0].bytes_out > 100 && journal[0].bytes_in > 100);
    assert_eq!(lab.log.seen()[0].sni.as_deref(), Some("api.good.test"));
}

/// C-02, K26: a hello that names somebody else, nobody, or is none, ends the
/// tunnel; not one byte reaches an upstream.
#[tokio::test]
async fn a_tunnel_names_its_host() {
    let Some(lab) = lab() else { return };
    for (mode, http) in [(restricted as fn(&mut Rules), false), (mediated, true)] {
        lab.set_rules(mode);
        for name in ["evil.test", "good.test", "xapi.good.test", "1.2.3.4"] {
            let client = tunnel(&lab, "api.good.test:443").await;
            assert!(tls(client, &lab.root(), name, &[]).await.is_err(), "{name}");
        }
        for bytes in [
            "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
            "\x16\x03\x01\x00\x05hello",
            "SSH-2.0-x\r\n",
        ] {
            if http && bytes.starts_with("SSH") {
                continue;
            }
            let mut client = tunnel(&lab, "api.good.test:443").await;
            client.send(bytes.as_bytes()).await.unwrap();
            let answer = client.rest().await;
            assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
    let sent: Vec<_> = lab.log.seen().into_iter().filter(|one| !one.bytes.is_empty()).collect();
    assert!(sent.is_empty(), "{sent:?}");
    let mismatched = lab.journal(8);
    let mismatched = mismatched.iter().filter(|line| line.outcome.as_str() == "sni_mismatch");
    assert!(mismatched.count() >= 8);
}

/// W68, N-15: plain requests, with both kinds of body, keep-alive and
/// `Expect: 100-continue`; our own tags do not come back from outside.
#[tokio::test]
async fn plain_requests_are_forwarded() {
    let Some(lab) = lab() else { return };
    let mut client = lab.open(Front::Proxy, Some(1000)).await;
    for request in [
        "GET http://api.good.test/a?b=c HTTP/1.1\r\nHost: api.good.test\r\nProxy-Authorization: Basic eA==\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n",
        "POST http://api.good.test/b HTTP/1.1\r\nHost: api.good.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
        "POST http://api.good.test/c HTTP/1.1\r\nHost: api.good.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nworld\r\n0\r\n\r\n",
    ] {
        let answer = ask(&mut client.stream, request).await;
        assert!(answer.contains("HTTP/1.1 200 OK") && answer.ends_with("origin"), "{answer}");
        assert!(!answer.contains("x-coldframe"), "{answer}");
        assert_eq!(answer.contains("100 Continue"), request.contains("Expect"), "{answer}");
    }
    drop(client);
    let text = lab.log.text();
    assert!(text.contains("GET /a?b=c HTTP/1.1\r\n"), "{text}");
    assert!(text.contains("hello") && text.contains("world"), "{text}");
    let lower = text.to_ascii_lowercase();
    assert!(!lower.contains("proxy-authorization") && !lower.contains("x-hop"), "{text}");
    // One connection carried them all, and one line says so for each.
    assert_eq!(lab.log.seen().len(), 1);
    assert_eq!(lab.journal(3).len(), 3);
}

/// A WebSocket is bytes both ways, behind one judged request.
#[tokio::test]
async fn a_websocket_is_tunnelled() {
    let Some(lab) = lab() else { return };
    let mut client = lab.open(Front::Proxy, Some(1000)).await;
    let request = "GET http://api.good.test/ws HTTP/1.1\r\nHost: api.good.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n";
    client.send(request.as_bytes()).await.unwrap();
    let head = client.until(b"\r\n\r\n").await;
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: websocket"), "{head}");
    client.send(b"\x81\x05hello").await.unwrap();
    assert_eq!(client.until(b"hello").await, b"\x81\x05hello");
}

/// U33, W77: a tag of ours is forged whoever sends it; an account without a
/// session is nobody where sessions decide.
#[tokio::test]
async fn identity_comes_from_the_link_alone() {
    let Some(lab) = lab() else { return };
    let request = "GET http://api.good.test/ HTTP/1.1\r\nHost: api.good.test\r\nX-Coldframe-Session: ses_1\r\n\r\n";
    let answer = lab.exchange(Front::Proxy, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert_eq!(code(&answer), "unidentified_sandbox");
    let id = SessionId::from_random([5; 16]);
    lab.set_rules(|rules| {
        rules.others = Others::Nobody;
        rules.sessions = vec![Session { uid: 2001, id: id.clone(), attended: false }];
    });
    assert_eq!(code(&connect(&lab, "api.good.test:443").await), "unidentified_sandbox");
    assert_eq!(lab.log.seen().len(), 0);
    assert_eq!(lab.script.questions(), Vec::<String>::new());
    let mut client = lab.open(Front::Proxy, Some(2001)).await;
    client.send(b"CONNECT api.good.test:443 HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(client.until(b"\r\n\r\n").await.starts_with(b"HTTP/1.1 200 "));
    drop(client);
    let journal = lab.journal(3);
    assert_eq!(journal.last().unwrap().session, Some(id));
}

/// Rules that change end what they no longer permit, and nothing else.
#[tokio::test]
async fn newer_rules_end_what_they_do_not_permit() {
    let Some(lab) = lab() else { return };
    lab.set_rules(mediated);
    let client = tunnel(&lab, "api.good.test:443").await;
    let mut kept = tls(client, &lab.root(), "api.good.test", &[]).await.unwrap();
    let client = tunnel(&lab, "evil.test:443").await;
    let mut ended = tls(client, &lab.root(), "evil.test", &[]).await.unwrap();
    lab.set_rules(|rules| rules.allow.clear());
    let answer = ask(&mut kept, "GET / HTTP/1.1\r\nHost: api.good.test\r\n\r\n").await;
    assert!(answer.ends_with("origin"));
    lab.set_rules(|rules| rules.mode = EgressMode::Brokered);
    let mut rest = Vec::new();
    drop(ended.read_to_end(&mut rest).await);
    drop(kept.read_to_end(&mut rest).await);
    assert!(rest.is_empty());
    let journal = lab.journal(2);
    assert!(journal.iter().all(|line| line.outcome.as_str() == "mode_denied"), "{journal:?}");
}

/// L46, U24: named paths lead where the operator says, below their base, and are
/// no proxy.
#[tokio::test]
async fn named_paths_lead_to_their_upstream() {
    let Some(lab) = lab() else { return };
    lab.set_rules(|rules| {
        rules.mode = EgressMode::Brokered;
        rules.upstreams = vec![Upstream {
            name: "model".into(),
            scheme: domain::allow::Scheme::Https,
            host: "api.good.test".parse().unwrap(),
            port: 443,
            base: "/v1".into(),
        }];
        rules.exceptions = vec![Exception { host: "api.good.test".parse().unwrap(), port: 443 }];
    });
    let mut client = lab.open(Front::Named, Some(1000)).await;
    let request =
        "POST /model/messages?a=b HTTP/1.1\r\nHost: 127.0.0.1:8788\r\nContent-Length: 2\r\n\r\nhi";
    let answer = ask(&mut client.stream, request).await;
    assert!(answer.ends_with("origin"), "{answer}");
    let seen = lab.log.seen();
    assert_eq!((seen[0].at, seen[0].sni.as_deref()), ((PUBLIC, 443), Some("api.good.test")));
    let text = String::from_utf8_lossy(&seen[0].bytes).into_owned();
    assert!(text.starts_with("POST /v1/messages?a=b HTTP/1.1\r\n"), "{text}");
    assert!(text.to_ascii_lowercase().contains("host: api.good.test\r\n"), "{text}");
    lab.forget();
    for (request, expected) in [
        ("GET /model/../admin HTTP/1.1\r\nHost: x\r\n\r\n", "ambiguous_path"),
        ("GET /model/%2e%2e/admin HTTP/1.1\r\nHost: x\r\n\r\n", "ambiguous_path"),
        ("GET /other/ HTTP/1.1\r\nHost: x\r\n\r\n", "not_connected"),
        ("GET http://api.good.test/ HTTP/1.1\r\nHost: api.good.test\r\n\r\n", "invalid_request"),
        (
            "CONNECT api.good.test:443 HTTP/1.1\r\nHost: api.good.test:443\r\n\r\n",
            "invalid_request",
        ),
    ] {
        let answer = lab.exchange(Front::Named, request.as_bytes()).await;
        assert_eq!(code(&answer), expected, "{request}");
    }
    assert_eq!(lab.log.seen().len(), 0);
}
