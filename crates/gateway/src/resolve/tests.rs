//! One lookup for one decision, over a real socket with a scripted authority.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use domain::{id::SandboxId, mode::EgressMode};
use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{RData, rdata::CNAME},
};
use tokio::net::UdpSocket;

use super::*;
use crate::{
    decide::{Front, Kind, Request, judge},
    resolve::dns::Dns,
    rules::Rules,
};

/// Answers A questions by script and counts them.
async fn authority(answers: fn(&str, usize) -> Vec<RData>) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = asked.clone();
    tokio::spawn(async move {
        let mut bytes = [0; 1500];
        while let Ok((length, client)) = socket.recv_from(&mut bytes).await {
            let Ok(question) = Message::from_vec(&bytes[..length]) else { continue };
            let query = question.queries[0].clone();
            let mut reply = Message::new(
                question.metadata.id,
                MessageType::Response,
                question.metadata.op_code,
            );
            reply.metadata.recursion_available = true;
            reply.add_query(query.clone());
            let name = query.name().to_ascii();
            if name.starts_with("nx.") {
                reply.metadata.response_code = ResponseCode::NXDomain;
            } else if query.query_type() == RecordType::A {
                let nth = counter.fetch_add(1, Ordering::SeqCst);
                for data in answers(&name, nth) {
                    reply.add_answer(Record::from_rdata(query.name().clone(), 0, data));
                }
            }
            socket.send_to(&reply.to_vec().unwrap(), client).await.unwrap();
        }
    });
    (address, asked)
}

fn a(address: [u8; 4]) -> RData {
    RData::A(Ipv4Addr::from(address).into())
}

fn permit(host: &str) -> Permit {
    let mut rules = Rules::off(SandboxId::from_random([1; 16]), 1);
    rules.mode = EgressMode::Open;
    let request = Request {
        front: Front::Proxy,
        kind: Kind::Tunnel,
        host: host.parse().unwrap(),
        port: 9999,
    };
    judge(&rules, &request).unwrap()
}

fn resolver(server: SocketAddr) -> Resolver {
    Resolver::new(Box::new(Dns::new(&[server]).unwrap()))
}

/// D-01, B8: a name that changes its answer is dialled at the one that was
/// judged, or not at all.
#[tokio::test]
async fn a_name_is_looked_up_once_and_pinned() {
    let (server, asked) = authority(|_, nth| match nth % 2 {
        0 => vec![a([9, 9, 9, 9])],
        _ => vec![a([127, 0, 0, 1])],
    })
    .await;
    let resolver = resolver(server);
    for _ in 0..50 {
        let before = asked.load(Ordering::SeqCst);
        let pinned = resolver.pin(permit("rb.evil.test")).await;
        assert!(asked.load(Ordering::SeqCst) <= before + 1, "looked up more than once");
        match pinned {
            Ok(pinned) => assert_eq!(pinned.addresses(), ["9.9.9.9:9999".parse().unwrap()]),
            Err(refusal) => assert_eq!(refusal.code, Code::DestinationBlocked),
        }
    }
}

/// U24, D-02
#[tokio::test]
async fn an_internal_answer_among_others_refuses_the_name() {
    let (server, _) = authority(|_, _| vec![a([9, 9, 9, 9]), a([169, 254, 169, 254])]).await;
    let refusal = resolver(server).pin(permit("multi.evil.test")).await.expect_err("refused");
    assert_eq!(refusal.code, Code::DestinationBlocked);
    assert!(refusal.detail.contains("169.254.0.0/16"), "{}", refusal.detail);
}

/// An endless chain of aliases ends.
#[tokio::test]
async fn a_chain_of_aliases_is_bounded() {
    let (server, asked) = authority(|_, nth| {
        let next = format!("c{nth}.evil.test.");
        vec![RData::CNAME(CNAME(next.parse().unwrap()))]
    })
    .await;
    let refusal = resolver(server).pin(permit("chain.evil.test")).await.expect_err("refused");
    assert_eq!(refusal.code, Code::Unresolvable);
    assert!(asked.load(Ordering::SeqCst) < 64, "{}", asked.load(Ordering::SeqCst));
}

/// What is an address is never looked up, and what does not exist is said to.
#[tokio::test]
async fn addresses_and_missing_names_need_no_answer() {
    let (server, asked) = authority(|_, _| Vec::new()).await;
    let resolver = resolver(server);
    assert!(resolver.pin(permit("9.9.9.9")).await.is_ok());
    let refusal = resolver.pin(permit("127.0.0.1")).await.expect_err("refused");
    assert_eq!(refusal.code, Code::DestinationBlocked);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let refusal = resolver.pin(permit("nx.evil.test")).await.expect_err("refused");
    assert_eq!(refusal.code, Code::Unresolvable);
}
