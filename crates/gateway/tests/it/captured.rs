//! Captured connections, the resolver and datagrams.

use guest_protocol::egress::{self, Destination, Front, Verdict};
use testkit::lab::{Client, INTERNAL, PUBLIC};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    proxy::{ask, tls},
    *,
};

async fn captured(lab: &Lab, destination: Destination) -> (Client, Verdict) {
    let mut client = lab.open(Front::Captured(destination), Some(1000)).await;
    let verdict = egress::read(&mut client.stream).await.unwrap();
    (client, verdict)
}

fn name(name: &str, port: u16) -> Destination {
    Destination::Name { name: name.into(), port }
}

fn refused(code: &str) -> Verdict {
    Verdict::Refused { code: code.into() }
}

/// W64: what ignores the proxy is held to the same rules, and hears at once.
#[tokio::test]
async fn captured_connections_are_held_to_the_rules() {
    let Some(lab) = lab() else { return };
    let public = |port| Destination::Address((PUBLIC, port).into());
    for (mode, destination, expected) in [
        (restricted as fn(&mut Rules), name("evil.test", 443), refused("policy_denied")),
        (restricted, name("api.good.test", 22), refused("policy_denied")),
        (restricted, public(443), refused("policy_denied")),
        (mediated, Destination::Address((INTERNAL[1], 80).into()), refused("destination_blocked")),
        (open, Destination::Address((INTERNAL[0], 80).into()), refused("destination_blocked")),
        (mediated, public(443), Verdict::Open),
        (open, public(22), Verdict::Open),
        (restricted, name("api.good.test", 443), Verdict::Open),
        (restricted, name("api.good.test", 80), Verdict::Open),
    ] {
        lab.set_rules(mode);
        let (_client, verdict) = captured(&lab, destination.clone()).await;
        assert_eq!(verdict, expected, "{destination:?}");
    }
    assert_eq!(lab.log.canaries(), []);
}

/// K26: a captured connection to a name carries that name.
#[tokio::test]
async fn captured_tls_and_http_name_their_host() {
    let Some(lab) = lab() else { return };
    let (client, _) = captured(&lab, name("api.good.test", 443)).await;
    let mut stream = tls(client, &lab.root(), "api.good.test", &[]).await.unwrap();
    assert!(
        ask(&mut stream, "GET / HTTP/1.1\r\nHost: api.good.test\r\n\r\n").await.ends_with("origin")
    );
    let (client, _) = captured(&lab, name("api.good.test", 443)).await;
    assert!(tls(client, &lab.root(), "evil.test", &[]).await.is_err());
    let (mut client, _) = captured(&lab, name("api.good.test", 80)).await;
    let answer = ask(&mut client.stream, "GET / HTTP/1.1\r\nHost: api.good.test\r\n\r\n").await;
    assert!(answer.ends_with("origin"), "{answer}");
    let (mut client, _) = captured(&lab, name("api.good.test", 80)).await;
    let answer = ask(&mut client.stream, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").await;
    assert_eq!(code(&answer), "sni_mismatch", "{answer}");
    assert!(!lab.log.text().contains("evil.test"));
}

/// W67: where anything may be spoken, a server that speaks first is heard, and a
/// client's first bytes are still looked at.
#[tokio::test]
async fn a_server_may_speak_first() {
    let Some(lab) = lab() else { return };
    lab.set_rules(mediated);
    let (mut client, _) = captured(&lab, name("git.test", 22)).await;
    assert_eq!(client.until(b"\r\n").await, b"hello, who are you\r\n");
    client.send(b"SSH-2.0-x\r\n").await.unwrap();
    assert_eq!(client.until(b"x\r\n").await, b"SSH-2.0-x\r\n");
    let (client, _) = captured(&lab, name("git.test", 22)).await;
    lab.forget();
    assert!(tls(client, &lab.root(), "evil.test", &[]).await.is_err());
    assert_eq!(lab.log.text(), "");
}

/// U5: listed names are permitted without a question to anybody, others do not
/// exist.
#[tokio::test]
async fn the_resolver_asks_nobody() {
    let Some(lab) = lab() else { return };
    let question = |name: &str| {
        let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        bytes
    };
    let mut client = lab.open(Front::Dns, Some(1000)).await;
    for (name, expected) in [("api.good.test", 0), ("evil.test", 3), ("secret.x.evil.test", 3)] {
        let question = question(name);
        client.stream.write_u16(u16::try_from(question.len()).unwrap()).await.unwrap();
        client.stream.write_all(&question).await.unwrap();
        let length = client.stream.read_u16().await.unwrap();
        let mut answer = vec![0; usize::from(length)];
        client.stream.read_exact(&mut answer).await.unwrap();
        assert_eq!((answer[3] & 0xf, &answer[6..8]), (expected, &[0, 0][..]), "{name}");
    }
    assert_eq!(lab.script.questions(), Vec::<String>::new());
    assert_eq!(lab.journal(3).len(), 3);
}

/// S23: datagrams in `open` only, and never to an internal address.
#[tokio::test]
async fn datagrams_leave_in_open_only() {
    let Some(lab) = lab() else { return };
    let authority = (testkit::lab::AUTHORITY, 53).into();
    for (mode, address, expected) in [
        (restricted as fn(&mut Rules), authority, refused("mode_denied")),
        (mediated, authority, refused("mode_denied")),
        (open, (INTERNAL[0], 53).into(), refused("destination_blocked")),
        (open, authority, Verdict::Open),
    ] {
        lab.set_rules(mode);
        let mut client = lab.open(Front::Udp(address), Some(1000)).await;
        let verdict: Verdict = egress::read(&mut client.stream).await.unwrap();
        assert_eq!(verdict, expected, "{address}");
        if verdict == Verdict::Open {
            let question = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
            client.stream.write_u16(19).await.unwrap();
            client.stream.write_all(&question).await.unwrap();
            let length = client.stream.read_u16().await.unwrap();
            assert!(length > 19);
        }
    }
    assert_eq!(lab.script.questions().len(), 1);
}
