//! H and the TLS that is opened.

use http::{Request, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{
    proxy::{ask, tls, tunnel},
    *,
};

fn intercepting(rules: &mut Rules) {
    restricted(rules);
    rules.intercept = vec!["api.good.test".parse().unwrap()];
}

/// A host that a rule names is answered under the sandbox's own authority, the
/// origin is verified, and other hosts are left alone.
#[tokio::test]
async fn only_what_a_rule_names_is_opened() {
    let Some(lab) = lab() else { return };
    lab.set_rules(intercepting);
    let client = tunnel(&lab, "api.good.test:443").await;
    let mut stream = tls(client, &lab.authority(), "api.good.test", &[b"http/1.1"]).await.unwrap();
    let answer = ask(&mut stream, "GET /x HTTP/1.1\r\nHost: api.good.test\r\n\r\n").await;
    assert!(answer.ends_with("origin"), "{answer}");
    let answer = ask(&mut stream, "GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n").await;
    assert_eq!(code(&answer), "sni_mismatch");
    let answer = ask(&mut stream, "GET /y HTTP/1.1\r\nHost: api.good.test\r\n\r\n").await;
    assert!(answer.ends_with("origin"), "{answer}");
    assert!(!lab.log.text().contains("evil.test"));
    assert_eq!(lab.log.seen().len(), 1);
    let client = tunnel(&lab, "other.good2.test:443").await;
    assert!(tls(client, &lab.root(), "other.good2.test", &[]).await.is_ok());
}

/// K26: an origin that is not who it should be is not spoken to.
#[tokio::test]
async fn an_origin_is_verified() {
    let Some(lab) = lab() else { return };
    lab.set_rules(|rules| {
        rules.allow.push("unknown.good3.test".parse().unwrap());
        rules.intercept = vec!["unknown.good3.test".parse().unwrap()];
    });
    let client = tunnel(&lab, "unknown.good3.test:443").await;
    assert!(tls(client, &lab.authority(), "unknown.good3.test", &[]).await.is_err());
    assert_eq!(lab.log.text(), "");
    assert_eq!(lab.journal(1)[0].outcome.as_str(), "unreachable");
}

/// H-01: an HTTP/2 request to the proxy names one host in every place.
#[tokio::test]
async fn http2_names_its_host() {
    let Some(lab) = lab() else { return };
    let client = lab.open(Front::Proxy, Some(1000)).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client.stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for (uri, host, expected) in [
        ("http://api.good.test/", None, 200),
        ("http://api.good.test/", Some("api.good.test"), 200),
        ("http://api.good.test/", Some("evil.test"), 421),
        ("http://evil.test/", None, 403),
        ("http://evil.test/", Some("api.good.test"), 421),
        ("https://api.good.test/", None, 400),
    ] {
        let mut request = Request::builder().uri(uri).version(Version::HTTP_2);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(Full::new(bytes::Bytes::new())).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{uri} {host:?}");
        drop(answer.into_body().collect().await);
    }
    assert!(!lab.log.text().contains("evil.test"));
}

/// H-02: a length that the frames do not keep is an error of the stream, and no
/// request of HTTP/1.1 is made of it.
#[tokio::test]
async fn http2_has_one_length() {
    let Some(lab) = lab() else { return };
    for fields in [
        vec![("content-length", "0")],
        vec![("content-length", "1")],
        vec![("content-length", "5"), ("content-length", "6")],
        vec![("content-length", "+5")],
        vec![("transfer-encoding", "chunked")],
        vec![("connection", "close")],
        vec![("upgrade", "websocket")],
        vec![("proxy-connection", "x")],
        vec![("keep-alive", "x")],
        vec![("te", "gzip")],
    ] {
        let client = lab.open(Front::Proxy, Some(1000)).await;
        let (sender, connection) = h2::client::handshake(client.stream).await.unwrap();
        let driving = tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        let mut request = Request::post("http://api.good.test/").version(Version::HTTP_2);
        for (name, value) in &fields {
            request = request.header(*name, *value);
        }
        // What its own library would not send is not sent either.
        if let Ok((answer, mut body)) = sender.send_request(request.body(()).unwrap(), false) {
            drop(body.send_data("GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n".into(), true));
            let answer = tokio::time::timeout(std::time::Duration::from_secs(10), answer).await;
            let passed = matches!(&answer, Ok(Ok(answer)) if answer.status().is_success());
            assert!(!passed, "{fields:?}: {answer:?}");
        }
        driving.abort();
    }
    assert!(!lab.log.text().contains("smuggled"), "{}", lab.log.text());
}
