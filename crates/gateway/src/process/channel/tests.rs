//! The channel against a server that says what a test wants.

use std::time::SystemTime;

use super::*;
use crate::{decide::Front, tls::authority::RootKey};

fn id(byte: u8) -> SandboxId {
    SandboxId::from_random([byte; 16])
}

struct Server {
    channel: Arc<Channel>,
    stream: UnixStream,
}

/// A channel that is driven, and the server's end of it.
async fn server() -> Server {
    let (near, mut far) = UnixStream::pair().unwrap();
    let (channel, queue) = Channel::new();
    let channel = Arc::new(channel);
    let driven = channel.clone();
    tokio::spawn(async move {
        let authorities = Authorities::new(RootKey::from_random([1; 32]));
        driven.drive(near, queue, &authorities).await.unwrap();
    });
    assert_eq!(wire::read::<ToServer>(&mut far).await.unwrap(), ToServer::Ready);
    Server { channel, stream: far }
}

impl Server {
    async fn hear(&mut self) -> ToServer {
        wire::read(&mut self.stream).await.unwrap()
    }

    async fn say(&mut self, message: ToGateway) {
        wire::write(&mut self.stream, &message).await.unwrap();
    }
}

/// No rules, or older ones, mean no way out: a stream waits until newer ones are
/// here, and later ones reach it.
#[tokio::test]
async fn rules_are_asked_for_and_replaced() {
    let mut server = server().await;
    let channel = server.channel.clone();
    let waiting = tokio::spawn(async move { channel.rules(&id(1), 3).await });
    assert_eq!(server.hear().await, ToServer::AskRules(id(1), 3));
    server.say(ToGateway::Rules(Box::new(Rules::off(id(1), 2)))).await;
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    server.say(ToGateway::Rules(Box::new(Rules::off(id(1), 3)))).await;
    let mut rules = waiting.await.unwrap().unwrap();
    assert_eq!(rules.borrow_and_update().generation, 3);
    // What comes late does not go back.
    server.say(ToGateway::Rules(Box::new(Rules::off(id(1), 2)))).await;
    server.say(ToGateway::Rules(Box::new(Rules::off(id(1), 4)))).await;
    rules.changed().await.unwrap();
    assert_eq!(rules.borrow_and_update().generation, 4);
    server.say(ToGateway::Forget(id(1))).await;
    assert!(rules.changed().await.is_err());
}

#[tokio::test]
async fn a_sandbox_that_is_not_known_has_no_rules() {
    let mut server = server().await;
    let channel = server.channel.clone();
    let waiting = tokio::spawn(async move { channel.rules(&id(1), 0).await });
    assert_eq!(server.hear().await, ToServer::AskRules(id(1), 0));
    server.say(ToGateway::Forget(id(1))).await;
    assert!(waiting.await.unwrap().is_none());
}

/// The authority of a sandbox is told, and its key is not.
#[tokio::test]
async fn trust_is_told() {
    let mut server = server().await;
    server.say(ToGateway::AskTrust(id(1))).await;
    let ToServer::Trust(whose, pem) = server.hear().await else { panic!("no trust") };
    assert_eq!(whose, id(1));
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE"));
}

/// L: a flood of one sandbox is bounded, counted, and takes nothing from others.
#[tokio::test]
async fn a_flood_of_records_is_counted() {
    let mut server = server().await;
    let record = |byte| Record {
        time: SystemTime::now().into(),
        sandbox: id(byte),
        session: None,
        uid: None,
        front: Front::Proxy,
        destination: "a.test:443".into(),
        rule: "allow".into(),
        outcome: "allowed".into(),
        bytes_out: 0,
        bytes_in: 0,
        duration_ms: 0,
        dropped: 0,
    };
    for _ in 0..10_000 {
        server.channel.record(record(1));
    }
    server.channel.record(record(2));
    let (mut first, mut dropped) = (0, 0);
    loop {
        let ToServer::Record(record) = server.hear().await else { panic!("no record") };
        if record.sandbox == id(2) {
            assert_eq!(record.dropped, 0);
            break;
        }
        first += 1;
        dropped += record.dropped;
    }
    assert!((u64::from(BURST)..10_000).contains(&first), "{first}");
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    server.channel.record(record(1));
    let ToServer::Record(record) = server.hear().await else { panic!("no record") };
    assert_eq!(dropped + record.dropped, 10_000 - first);
}
