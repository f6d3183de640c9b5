//! Questions in every mode, and bytes that are none.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use domain::{
    id::SandboxId,
    mode::EgressMode::{self, Brokered, Mediated, Off, Open, Restricted},
};
use hickory_resolver::proto::{
    op::{Edns, Message, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name as DnsName, RData, Record, rdata::TXT},
};
use proptest::prelude::*;

use super::*;

/// Answers every question with what it was made with, and counts.
#[derive(Default)]
struct Scripted {
    addresses: Vec<IpAddr>,
    asked: Arc<Mutex<Vec<(String, RecordType)>>>,
}

#[async_trait]
impl Lookup for Scripted {
    async fn addresses(&self, _: &Name) -> Result<Vec<IpAddr>, LookupError> {
        Ok(self.addresses.clone())
    }

    async fn records(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, LookupError> {
        self.asked.lock().unwrap().push((name.to_string(), kind));
        let owner = DnsName::from_ascii(format!("{name}.")).unwrap();
        let record = |data| Record::from_rdata(owner.clone(), 86_400, data);
        if kind == RecordType::TXT {
            return Ok(vec![record(RData::TXT(TXT::new(vec!["v=1".to_owned()])))]);
        }
        let data = |address: &IpAddr| match address {
            IpAddr::V4(address) => RData::A((*address).into()),
            IpAddr::V6(address) => RData::AAAA((*address).into()),
        };
        Ok(self.addresses.iter().map(|address| record(data(address))).collect())
    }
}

fn rules(mode: EgressMode) -> Rules {
    let mut rules = Rules::off(SandboxId::from_random([1; 16]), 1);
    rules.mode = mode;
    rules.allow = vec!["good.test".parse().unwrap()];
    rules
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(DnsName::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

use hickory_resolver::proto::op::MessageType;

async fn ask(mode: EgressMode, bytes: &[u8], lookup: &Scripted) -> Option<(Message, Ruling)> {
    let meter = Meter::new(Instant::now());
    let answer = answer(&rules(mode), bytes, lookup, &Own::default(), &meter).await?;
    Some((Message::from_vec(&answer.message).expect("an answer is a message"), answer.ruling))
}

/// U5, K25, S22, N-02: nothing is looked up for an address in the modes with
/// made-up ones; unlisted names do not exist.
#[tokio::test]
async fn each_mode_answers_as_it_promises() {
    use ResponseCode::{NXDomain, NoError, Refused};
    let (a, txt) = (RecordType::A, RecordType::TXT);
    for (mode, name, kind, code, records, lookups) in [
        (Off, "good.test.", a, Refused, 0, 0),
        (Brokered, "good.test.", a, Refused, 0, 0),
        (Restricted, "GooD.test.", a, NoError, 0, 0),
        (Restricted, "good.test.", RecordType::AAAA, NoError, 0, 0),
        (Restricted, "good.test.", txt, NXDomain, 0, 0),
        (Restricted, "secret.evil.test.", a, NXDomain, 0, 0),
        (Mediated, "secret.evil.test.", a, NoError, 0, 0),
        (Mediated, "evil.test.", txt, NoError, 1, 1),
        (Mediated, "localhost.", a, NXDomain, 0, 0),
        (Mediated, "1.2.3.4.", a, NXDomain, 0, 0),
        (Mediated, "1.0.0.10.in-addr.arpa.", RecordType::PTR, NoError, 0, 0),
        (Mediated, "good.test.", RecordType::HTTPS, NoError, 0, 0),
        (Mediated, "good.test.", RecordType::AXFR, NoError, 0, 0),
        (Mediated, "good.test.", RecordType::ANY, NoError, 0, 0),
        (Open, "evil.test.", a, NoError, 1, 1),
        (Open, "evil.test.", txt, NoError, 1, 1),
        (Open, "localhost.", a, NXDomain, 0, 0),
    ] {
        let lookup = Scripted { addresses: vec!["9.9.9.9".parse().unwrap()], ..Default::default() };
        let (message, ruling) = ask(mode, &question(name, kind), &lookup).await.unwrap();
        let told = (message.metadata.response_code, message.answers.len());
        assert_eq!(told, (code, records), "{mode:?} {name} {kind} {ruling:?}");
        assert_eq!(lookup.asked.lock().unwrap().len(), lookups, "{mode:?} {name} {kind}");
        // The question comes back letter by letter.
        assert_eq!(message.queries[0].name().to_ascii(), name);
        assert_eq!(message.metadata.id, 7);
        assert!(message.answers.iter().all(|record| record.ttl <= 60));
    }
}

/// U24, D-02: in `open`, a name with one internal answer has none.
#[tokio::test]
async fn an_internal_answer_is_not_passed_on() {
    for internal in ["127.0.0.1", "169.254.169.254", "10.1.2.3"] {
        let addresses = ["9.9.9.9", internal].map(|address| address.parse().unwrap()).to_vec();
        let lookup = Scripted { addresses, ..Default::default() };
        let (message, ruling) =
            ask(Open, &question("rb.evil.test.", RecordType::A), &lookup).await.unwrap();
        assert_eq!(message.metadata.response_code, ResponseCode::NXDomain);
        assert!(message.answers.is_empty());
        assert_eq!(ruling, Ruling::Refused(Code::DestinationBlocked));
    }
}

/// K25: names are a poor way to carry data out.
#[tokio::test]
async fn long_and_frequent_questions_are_refused() {
    let lookup = Scripted::default();
    let long = format!("{}.evil.test.", "a".repeat(41));
    let (_, ruling) = ask(Mediated, &question(&long, RecordType::TXT), &lookup).await.unwrap();
    assert_eq!(ruling, Ruling::Refused(Code::PolicyDenied));
    let many = format!("{}evil.test.", "abcdefgh.".repeat(15));
    let (_, ruling) = ask(Mediated, &question(&many, RecordType::TXT), &lookup).await.unwrap();
    assert_eq!(ruling, Ruling::Refused(Code::PolicyDenied));
    assert!(lookup.asked.lock().unwrap().is_empty());

    let (meter, own) = (Meter::new(Instant::now()), Own::default());
    let bytes = question("evil.test.", RecordType::TXT);
    let mut refused = 0;
    for _ in 0..200 {
        let answer = answer(&rules(Mediated), &bytes, &lookup, &own, &meter).await.unwrap();
        refused += usize::from(answer.ruling == Ruling::Refused(Code::TooMany));
    }
    assert_eq!(lookup.asked.lock().unwrap().len() + refused, 200);
    assert!(refused > 100, "{refused}");
}

/// A question is one question and nothing else.
#[tokio::test]
async fn what_is_no_single_question_is_refused() {
    let good = question("good.test.", RecordType::A);
    let with = |change: fn(&mut Message)| {
        let mut message = Message::from_vec(&question("good.test.", RecordType::A)).unwrap();
        change(&mut message);
        message.to_vec().unwrap()
    };
    let answers = |bytes: Vec<u8>| async move {
        let answered = ask(Mediated, &bytes, &Scripted::default()).await;
        answered.map(|(message, _)| message.metadata.response_code)
    };
    let two = with(|message| {
        let second = message.queries[0].clone();
        message.add_query(second);
    });
    assert_eq!(answers(two).await, Some(ResponseCode::FormErr));
    let none = with(|message| message.queries.clear());
    assert_eq!(answers(none).await, Some(ResponseCode::FormErr));
    let answer = with(|message| message.metadata.message_type = MessageType::Response);
    assert_eq!(answers(answer).await, None);
    let status = with(|message| message.metadata.op_code = OpCode::Update);
    assert_eq!(answers(status).await, Some(ResponseCode::NotImp));
    let chaos = with(|message| {
        message.queries[0].set_query_class(DNSClass::CH);
    });
    assert_eq!(answers(chaos).await, Some(ResponseCode::NotImp));
    let extended = with(|message| {
        message.set_edns(Edns::new());
    });
    assert_eq!(answers(extended).await, Some(ResponseCode::NoError));
    let mut padded = good.clone();
    padded.resize(2000, 0);
    assert_eq!(answers(padded).await, Some(ResponseCode::FormErr));
    for length in 0..good.len() {
        let told = answers(good[..length].to_vec()).await;
        assert!(matches!(told, None | Some(ResponseCode::FormErr)), "{length}");
    }
}

proptest! {
    /// D: whatever bytes come, they are answered or not, and nothing is looked up
    /// for what is no question.
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), mode in 0..5_usize) {
        let mode = [Off, Brokered, Restricted, Mediated, Open][mode];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(ask(mode, &bytes, &Scripted::default()));
    }

    /// Damage to a good question.
    #[test]
    fn no_damaged_question_panics(
        at in 0..40_usize,
        byte: u8,
        cut in 0..60_usize,
        mode in 0..5_usize,
    ) {
        let mode = [Off, Brokered, Restricted, Mediated, Open][mode];
        let mut bytes = question("a.good.test.", RecordType::A);
        if let Some(target) = bytes.get_mut(at) {
            *target = byte;
        }
        bytes.truncate(cut);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        if let Some((message, _)) = runtime.block_on(ask(mode, &bytes, &Scripted::default())) {
            prop_assert_eq!(message.metadata.message_type, MessageType::Response);
            prop_assert_eq!(&bytes[..2], &message.metadata.id.to_be_bytes()[..]);
        }
    }
}
