//! The authority for every name: scripted answers, every question logged.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{RData, Record, RecordType, rdata::CNAME},
};
use tokio::net::UdpSocket;

use super::{AUTHORITY, PUBLIC};

/// What is answered for a name.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These addresses.
    Addresses(Vec<Ipv4Addr>),
    /// The nth question gets the nth of these, the last one from then on.
    InTurn(Vec<Ipv4Addr>),
    /// Another name.
    Alias(String),
    /// No such name.
    Nothing,
}

/// What the authority says and what it heard. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    answers: HashMap<String, Answer>,
    questions: Vec<String>,
    asked: HashMap<String, usize>,
}

impl Script {
    /// Sets what is answered for a name; without it every name leads to
    /// [`PUBLIC`].
    pub fn set(&self, name: &str, answer: Answer) {
        self.state().answers.insert(name.to_owned(), answer);
    }

    /// Names that were asked for, each as often as it was.
    pub fn questions(&self) -> Vec<String> {
        self.state().questions.clone()
    }

    pub(super) fn clear(&self) {
        let mut state = self.state();
        state.questions.clear();
        state.asked.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, name: &str, kind: RecordType) -> Option<Vec<RData>> {
        let mut state = self.state();
        state.questions.push(format!("{name} {kind}"));
        let answer = state.answers.get(name).cloned();
        let addresses = |addresses: Vec<Ipv4Addr>| match kind {
            RecordType::A => addresses.into_iter().map(|one| RData::A(one.into())).collect(),
            _ => Vec::new(),
        };
        Some(match answer.unwrap_or_else(|| Answer::Addresses(vec![PUBLIC])) {
            Answer::Nothing => return None,
            Answer::Addresses(all) => addresses(all),
            Answer::InTurn(all) => {
                let count = state.asked.entry(format!("{name} {kind}")).or_default();
                let one = all[(*count).min(all.len() - 1)];
                *count += 1;
                addresses(vec![one])
            }
            Answer::Alias(other) => {
                let other = other.parse().expect("a name in a script");
                vec![RData::CNAME(CNAME(other))]
            }
        })
    }
}

/// Answers until the lab ends.
pub(super) async fn serve(script: Script) {
    let socket = UdpSocket::bind((AUTHORITY, 53)).await.expect("the authority's address");
    let mut bytes = [0; 1500];
    while let Ok((length, client)) = socket.recv_from(&mut bytes).await {
        let Ok(question) = Message::from_vec(&bytes[..length]) else { continue };
        let Some(query) = question.queries.first().cloned() else { continue };
        let (id, code) = (question.metadata.id, question.metadata.op_code);
        let mut reply = Message::new(id, MessageType::Response, code);
        reply.metadata.recursion_available = true;
        reply.add_query(query.clone());
        let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
        match script.answer(&name, query.query_type()) {
            None => reply.metadata.response_code = ResponseCode::NXDomain,
            Some(answers) => {
                for data in answers {
                    reply.add_answer(Record::from_rdata(query.name().clone(), 0, data));
                }
            }
        }
        let Ok(bytes) = reply.to_vec() else { continue };
        drop(socket.send_to(&bytes, client).await);
    }
}
