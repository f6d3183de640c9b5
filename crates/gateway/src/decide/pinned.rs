//! From a permit and the answers of one lookup to addresses that may be dialled.

use std::net::{IpAddr, SocketAddr};

use super::{Permit, Request, judge};
use crate::{
    address::{self, Own},
    code::{Code, Refusal},
    rules::Rules,
};

/// A permitted destination and its addresses. Nothing else is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    permit: Permit,
    addresses: Vec<SocketAddr>,
}

impl Pinned {
    /// What was permitted.
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.permit.request
    }

    /// The addresses, in the order in which to try them. Never empty.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Judges every answer of the lookup; one internal answer refuses the whole name
/// (U24), so that no fall-back can reach it.
///
/// For a destination that is an address, that is the answer.
pub fn pin(permit: Permit, answers: &[IpAddr], own: &Own) -> Result<Pinned, Refusal> {
    let host = &permit.request.host;
    if answers.is_empty() {
        let detail = format!("{host} has no address");
        return Err(Refusal::new(Code::Unresolvable, "resolution", detail));
    }
    if !permit.exempt {
        for answer in answers {
            if let Err(internal) = address::judge(*answer, own) {
                return Err(blocked(&permit, internal));
            }
        }
    }
    let port = permit.request.port;
    let addresses =
        answers.iter().map(|answer| SocketAddr::new(answer.to_canonical(), port)).collect();
    Ok(Pinned { permit, addresses })
}

fn blocked(permit: &Permit, internal: address::Internal) -> Refusal {
    let host = &permit.request.host;
    let detail = match host.name() {
        Some(_) => format!("{host} resolves to an address that is not public: {internal}"),
        None => format!("{host} is not a public address: {internal}"),
    };
    Refusal::new(Code::DestinationBlocked, format!("address {internal}"), detail)
}

/// Whether a connection that was permitted under older rules still is, without
/// another lookup.
pub fn recheck(rules: &Rules, pinned: &Pinned, own: &Own) -> Result<(), Refusal> {
    let permit = judge(rules, &pinned.permit.request)?;
    if permit.content != pinned.permit.content || permit.intercept != pinned.permit.intercept {
        let detail = "the rules changed; connect again";
        return Err(Refusal::new(Code::PolicyDenied, permit.rule, detail));
    }
    let answers: Vec<_> = pinned.addresses.iter().map(SocketAddr::ip).collect();
    pin(permit, &answers, own).map(drop)
}
