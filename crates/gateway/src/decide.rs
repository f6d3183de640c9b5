//! Every decision, in one order, as pure functions (U28).
//!
//! 1. [`identify`]: which session is asking.
//! 2. [`destination`]: the one reading of where to.
//! 3. [`judge`], [`judge_named`] or [`judge_lookup`]: does the mode have this
//!    way out, and do the rules name the destination. Nothing was looked up yet.
//! 4. [`pin`]: the answers of the one lookup, every one of them judged.
//!
//! Each takes what it needs and reads nothing, so that a table can test it and
//! [`explain()`] can tell what it would say. A permit is the only way from one
//! step to the next: its type cannot be made elsewhere.

mod explain;
mod modes;
mod pinned;

use domain::{
    host::{Authority, Host},
    id::SessionId,
};
use serde::{Deserialize, Serialize};

pub use self::{
    explain::{Explanation, Step, explain},
    modes::{Lookup, judge, judge_lookup, judge_named, permit_named},
    pinned::{Pinned, pin, recheck},
};
use crate::{
    code::{Code, Refusal},
    rules::{Others, Rules},
};

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Front {
    /// A named path.
    Named,
    /// The forward proxy.
    Proxy,
    /// A captured connection.
    Captured,
    /// The resolver.
    Dns,
    /// Datagrams.
    Udp,
}

impl Front {
    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Proxy => "proxy",
            Self::Captured => "captured",
            Self::Dns => "dns",
            Self::Udp => "udp",
        }
    }
}

/// What will be spoken, as far as it is known before the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A plain HTTP request that the gateway itself parses.
    Http,
    /// Bytes both ways, from `CONNECT` or captured.
    Tunnel,
    /// Datagrams.
    Datagrams,
}

/// Where somebody wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it came in.
    pub front: Front,
    /// What will be spoken.
    pub kind: Kind,
    /// Whereto.
    pub host: Host,
    /// The port there.
    pub port: u16,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The session; none for the sandbox as a whole.
    pub session: Option<SessionId>,
    /// Whether somebody is there to be asked.
    pub attended: bool,
}

/// What a permitted connection may carry. Whatever else comes ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// TLS that names the permitted host.
    Tls,
    /// HTTP requests to the permitted host.
    Http,
    /// Either of the two.
    TlsOrHttp,
    /// Anything; but what is TLS or HTTP has to name the permitted host.
    Anything,
    /// Anything at all: judged by address alone.
    Unchecked,
}

/// Proof that the rules name a destination. Only [`judge`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    request: Request,
    content: Content,
    intercept: bool,
    exempt: bool,
    rule: String,
}

impl Permit {
    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// What the connection may carry.
    pub fn content(&self) -> Content {
        self.content
    }

    /// Whether its TLS is opened.
    pub fn intercept(&self) -> bool {
        self.intercept
    }

    /// The rule that permits it, as the journal names it.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

/// Says which session a client belongs to, by its account (U33).
///
/// A session that has the account wins. An account that could not be found out
/// is refused where sessions exist, since it might be any of them.
pub fn identify(rules: &Rules, uid: Option<u32>) -> Result<Client, Refusal> {
    let found = rules.sessions.iter().find(|session| Some(session.uid) == uid);
    if let Some(session) = found {
        return Ok(Client { session: Some(session.id.clone()), attended: session.attended });
    }
    match (rules.others, uid) {
        (Others::Sandbox, Some(_)) => Ok(Client { session: None, attended: false }),
        (Others::Sandbox, None) if rules.sessions.is_empty() => {
            Ok(Client { session: None, attended: false })
        }
        _ => Err(Refusal::new(
            Code::UnidentifiedSandbox,
            "session",
            "the program that asks belongs to no session of this sandbox; \
             create one for its account with `coldframe session create`",
        )),
    }
}

/// Reads where somebody wants to go, as in `CONNECT` or the `Host` of a request.
/// `default` is the port where none is written.
pub fn destination(raw: &str, default: Option<u16>) -> Result<(Host, u16), Refusal> {
    let refuse = |why: String| Refusal::new(Code::InvalidDestination, "destination", why);
    let Authority { host, port } = raw.parse().map_err(|error| refuse(format!("{error}")))?;
    let port = port.or(default).ok_or_else(|| refuse("the port is missing".to_owned()))?;
    Ok((host, port))
}

#[cfg(test)]
mod tests;
