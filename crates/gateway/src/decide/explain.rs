//! The same decision with its reasons, for a person who asks what would happen.
//!
//! Nothing is sent and nothing is looked up: for a name, the last step says what
//! its answers would be held to.

use domain::allow::Scheme;
use serde::{Deserialize, Serialize};

use super::{Content, Front, Kind, Permit, Request, destination, identify, judge, pin};
use crate::{
    address::Own,
    code::{Code, Refusal},
    rules::Rules,
};

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is asked, such as `session`.
    pub question: String,
    /// What comes out of it.
    pub answer: String,
}

/// What would happen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The canonical destination, where there is one.
    pub destination: Option<String>,
    /// The steps in their order, up to the one that decides.
    pub steps: Vec<Step>,
    /// The refusal, if it would be refused before anything is looked up.
    pub refusal: Option<Refusal>,
    /// The rule that permits it.
    pub rule: Option<String>,
}

/// Explains what would happen to a URL, asked for by an account of the sandbox.
/// Without a scheme it is `https`.
pub fn explain(rules: &Rules, uid: Option<u32>, url: &str, own: &Own) -> Explanation {
    let mut told = Explanation { destination: None, steps: Vec::new(), refusal: None, rule: None };
    match follow(rules, uid, url, own, &mut told) {
        Ok(permit) => told.rule = Some(permit.rule),
        Err(refusal) => {
            let question = question(&refusal);
            told.step(question, format!("refused, {}: {}", refusal.code, refusal.detail));
            told.refusal = Some(refusal);
        }
    }
    told
}

fn follow(
    rules: &Rules,
    uid: Option<u32>,
    url: &str,
    own: &Own,
    told: &mut Explanation,
) -> Result<Permit, Refusal> {
    let client = identify(rules, uid)?;
    told.step(
        "session",
        match &client.session {
            Some(session) => session.to_string(),
            None => "the sandbox as a whole".to_owned(),
        },
    );
    let request = request(url)?;
    let destination = format!("{}:{}", request.host, request.port);
    told.step("destination", destination.clone());
    told.destination = Some(destination);
    let permit = judge(rules, &request)?;
    told.step("rule", format!("{} permits {}", permit.rule, carries(permit.content)));
    match request.host.address() {
        Some(address) => {
            let pinned = pin(permit, &[address], own)?;
            told.step("address", "public".to_owned());
            Ok(pinned.permit().clone())
        }
        None if permit.exempt => {
            told.step("address", "the operator excepts this host and port".to_owned());
            Ok(permit)
        }
        None => {
            let answer = "looked up once; refused if any answer is internal";
            told.step("address", answer.to_owned());
            Ok(permit)
        }
    }
}

impl Explanation {
    fn step(&mut self, question: &str, answer: String) {
        self.steps.push(Step { question: question.to_owned(), answer });
    }
}

/// The host and the port of a URL, and whether it is plain HTTP. The path plays
/// no part.
fn request(url: &str) -> Result<Request, Refusal> {
    let refuse = |why: &str| Refusal::new(Code::InvalidDestination, "destination", why);
    let (scheme, rest) = match url.split_once("://") {
        None => (Scheme::Https, url),
        Some((word, rest)) if word.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
        Some((word, rest)) if word.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
        Some(_) => return Err(refuse("a URL begins with https:// or http://")),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = destination(authority, Some(scheme.port()))?;
    let kind = match scheme {
        Scheme::Https => Kind::Tunnel,
        Scheme::Http => Kind::Http,
    };
    Ok(Request { front: Front::Proxy, kind, host, port })
}

fn question(refusal: &Refusal) -> &'static str {
    match refusal.code {
        Code::UnidentifiedSandbox => "session",
        Code::InvalidDestination => "destination",
        Code::DestinationBlocked => "address",
        _ => "rule",
    }
}

fn carries(content: Content) -> &'static str {
    match content {
        Content::Tls => "TLS to this host",
        Content::Http => "plain HTTP to this host",
        Content::TlsOrHttp => "TLS and plain HTTP to this host",
        Content::Anything => "any protocol",
        Content::Unchecked => "any protocol, by address alone",
    }
}
