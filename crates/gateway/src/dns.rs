//! The resolver that programs in a sandbox see (U5).
//!
//! The relay sends each question here as the client wrote it. For an address in
//! `restricted` and `mediated`, nothing is looked up: the answer is either
//! [`Ruling::Permitted`], an answer without records for which the relay puts in
//! an address of its own, or that there is no such name. Other questions are
//! passed on where the mode allows it, within limits that make names a poor way
//! to carry data out.
//!
//! Never passed on: questions for whole zones, reverse lookups, and records that
//! tell a client how to hide the name it connects to.

mod message;
mod records;

use std::{sync::Mutex, time::Instant};

use domain::host::{Host, Name};
use hickory_resolver::proto::rr::RecordType;

use crate::{
    address::Own,
    code::Code,
    decide::{Lookup as Does, judge_lookup},
    journal::Text,
    pace::Pace,
    resolve::{Lookup, LookupError},
    rules::Rules,
};

use self::message::{Question, Reply};

/// The longest label of a question that is passed on in `mediated`.
const LONGEST_LABEL: usize = 40;
/// The longest name of such a question.
const LONGEST_NAME: usize = 128;
/// Questions that are passed on for one sandbox: at once, and each second.
const BURST: u32 = 60;
const PER_SECOND: u32 = 20;

/// The limits of one sandbox.
#[derive(Debug)]
pub struct Meter(Mutex<Pace>);

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// An address may be made up for it.
    Permitted,
    /// It was passed on and answered.
    Forwarded,
    /// It was refused, with this code.
    Refused(Code),
}

/// An answer, and what the journal says about it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The message for the client.
    pub message: Vec<u8>,
    /// The name that was asked for, and the type.
    pub asked: Text,
    /// What came of it.
    pub ruling: Ruling,
    /// The rule that decided.
    pub rule: Text,
}

impl Meter {
    /// Full.
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(Pace::new(BURST, PER_SECOND, now)))
    }

    fn take(&self) -> bool {
        // Nothing panics while it is held.
        let mut pace = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pace.take(Instant::now())
    }
}

/// Answers one question. `None` for bytes that are none and cannot be answered:
/// the stream they came on ends.
pub async fn answer(
    rules: &Rules,
    bytes: &[u8],
    lookup: &dyn Lookup,
    own: &Own,
    meter: &Meter,
) -> Option<Answer> {
    let question = match message::read(bytes)? {
        Ok(question) => question,
        Err(message) => {
            return Some(Answer {
                message,
                asked: "a malformed question".into(),
                ruling: Ruling::Refused(Code::InvalidRequest),
                rule: "dns".into(),
            });
        }
    };
    let asked = Text::from(format!("{} {}", question.name(), question.kind()).as_str());
    let (reply, ruling, rule) = decide(rules, &question, lookup, own, meter).await;
    let message = question.reply(reply)?;
    Some(Answer { message, asked, ruling, rule: rule.as_str().into() })
}

type Decided = (Reply, Ruling, String);

async fn decide(
    rules: &Rules,
    question: &Question,
    lookup: &dyn Lookup,
    own: &Own,
    meter: &Meter,
) -> Decided {
    let mode = format!("mode {}", rules.mode.as_str());
    let kind = question.kind();
    let Some(name) = question.host() else {
        return (Reply::NoSuchName, Ruling::Refused(Code::InvalidDestination), "dns".to_owned());
    };
    let address = matches!(kind, RecordType::A | RecordType::AAAA);
    let does = match judge_lookup(rules, &name, address) {
        Ok(does) => does,
        Err(refusal) => return (Reply::Refused, Ruling::Refused(refusal.code), refusal.rule),
    };
    match does {
        Does::Synthetic => (Reply::Empty, Ruling::Permitted, mode),
        Does::NoSuchName => (Reply::NoSuchName, Ruling::Refused(Code::PolicyDenied), mode),
        Does::Forward if !records::may_be_asked(kind, &name) => {
            (Reply::Empty, Ruling::Refused(Code::PolicyDenied), "dns type".to_owned())
        }
        Does::Forward if !address && is_long(&name) => {
            (Reply::NoSuchName, Ruling::Refused(Code::PolicyDenied), "dns length".to_owned())
        }
        Does::Forward if !meter.take() => {
            (Reply::Refused, Ruling::Refused(Code::TooMany), "dns rate".to_owned())
        }
        Does::Forward => forward(rules, kind, &name, lookup, own, mode).await,
    }
}

async fn forward(
    rules: &Rules,
    kind: RecordType,
    name: &Name,
    lookup: &dyn Lookup,
    own: &Own,
    mode: String,
) -> Decided {
    let found = match lookup.records(name, kind).await {
        Ok(found) => found,
        Err(LookupError::NoSuchName) => return (Reply::NoSuchName, Ruling::Forwarded, mode),
        Err(error @ LookupError::Failed { .. }) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "a lookup failed");
            return (Reply::Failed, Ruling::Refused(Code::Unresolvable), mode);
        }
    };
    let excepted = rules.exceptions.iter().any(|open| open.host == Host::Name(name.clone()));
    match records::judged(found, own, excepted) {
        Ok(records) => (Reply::Records(records), Ruling::Forwarded, mode),
        Err(internal) => {
            let rule = format!("address {internal}");
            (Reply::NoSuchName, Ruling::Refused(Code::DestinationBlocked), rule)
        }
    }
}

fn is_long(name: &Name) -> bool {
    name.as_str().len() > LONGEST_NAME || name.labels().any(|label| label.len() > LONGEST_LABEL)
}

#[cfg(test)]
mod tests;
