//! What each mode lets out, before any lookup.
//!
//! | Mode | named paths | proxy and captured | datagrams | resolver |
//! |---|---|---|---|---|
//! | `off` | – | – | – | – |
//! | `brokered` | yes | – | – | – |
//! | `restricted` | yes | what is listed, as TLS or as the entry says | – | listed names, made-up addresses |
//! | `mediated` | yes | any public destination, any port | – | any name, made-up addresses |
//! | `open` | yes | any public address, any port | yes | real answers |

use domain::{
    allow::{Entry, Scheme},
    host::{Host, Name},
    mode::EgressMode::{Brokered, Mediated, Off, Open, Restricted},
};

use super::{Content, Front, Kind, Permit, Request};
use crate::{
    code::{Code, Refusal},
    rules::{Rules, Upstream},
};

/// What the resolver does with a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The relay answers with an address of its own; nothing is looked up.
    Synthetic,
    /// There is no such name.
    NoSuchName,
    /// The question is passed on, within limits.
    Forward,
}

/// Decides whether a connection may be made to a destination, before it is
/// looked up.
pub fn judge(rules: &Rules, request: &Request) -> Result<Permit, Refusal> {
    let content = match (rules.mode, request.kind) {
        (Off | Brokered, _) | (Restricted | Mediated, Kind::Datagrams) => return Err(mode(rules)),
        (Restricted, kind) => return listed(rules, request, kind),
        (Mediated, Kind::Http) => Content::Http,
        (Mediated, Kind::Tunnel) => Content::Anything,
        (Open, Kind::Http) => Content::Http,
        (Open, _) => Content::Unchecked,
    };
    if is_this_host(&request.host) {
        return Err(this_host(rules, request));
    }
    Ok(permit(rules, request, content, format!("mode {}", rules.mode.as_str())))
}

/// In `restricted`: is it listed, and for what.
fn listed(rules: &Rules, request: &Request, kind: Kind) -> Result<Permit, Refusal> {
    let find = |scheme| {
        let covers = |entry: &&Entry| entry.covers(&request.host, request.port, scheme);
        rules.allow.iter().find(covers)
    };
    let (tls, http) = (find(Scheme::Https), find(Scheme::Http));
    let (content, entry) = match (kind, tls, http) {
        (Kind::Http, _, Some(entry)) => (Content::Http, entry),
        (Kind::Tunnel, Some(entry), Some(_)) => (Content::TlsOrHttp, entry),
        (Kind::Tunnel, Some(entry), None) => (Content::Tls, entry),
        (Kind::Tunnel, None, Some(entry)) => (Content::Http, entry),
        _ => return Err(unlisted(rules, request, kind)),
    };
    if is_this_host(&request.host) {
        return Err(this_host(rules, request));
    }
    Ok(permit(rules, request, content, format!("allow {entry}")))
}

fn permit(rules: &Rules, request: &Request, content: Content, rule: String) -> Permit {
    Permit {
        request: request.clone(),
        content,
        intercept: content != Content::Unchecked && rules.intercept.contains(&request.host),
        exempt: rules.excepts(&request.host, request.port),
        rule,
    }
}

/// Finds what a named path leads to.
pub fn judge_named<'a>(rules: &'a Rules, name: &str) -> Result<&'a Upstream, Refusal> {
    if rules.mode == Off {
        return Err(mode(rules));
    }
    rules.upstreams.iter().find(|upstream| upstream.name == name).ok_or_else(|| {
        Refusal::new(
            Code::NotConnected,
            "upstreams",
            "there is no upstream of that name; an administrator configures them",
        )
    })
}

/// Permits what a named path leads to. The operator named it, so it may be
/// internal.
pub fn permit_named(upstream: &Upstream) -> Permit {
    let (host, port) = (upstream.host.clone(), upstream.port);
    Permit {
        request: Request { front: Front::Named, kind: Kind::Http, host, port },
        content: Content::Http,
        intercept: false,
        exempt: true,
        rule: format!("upstream {}", upstream.name),
    }
}

/// Decides what happens to a question to the resolver. `address` says whether it
/// asks for an address (A or AAAA).
pub fn judge_lookup(rules: &Rules, name: &Name, address: bool) -> Result<Lookup, Refusal> {
    let host = Host::Name(name.clone());
    Ok(match rules.mode {
        Off | Brokered => return Err(mode(rules)),
        _ if is_this_host(&host) => Lookup::NoSuchName,
        Restricted if address && rules.allow.iter().any(|entry| entry.names(&host)) => {
            Lookup::Synthetic
        }
        Restricted => Lookup::NoSuchName,
        Mediated if address => Lookup::Synthetic,
        Mediated | Open => Lookup::Forward,
    })
}

/// Names that mean the machine which asks (RFC 6761), whatever a resolver says.
fn is_this_host(host: &Host) -> bool {
    host.name().is_some_and(|name| name.labels().next_back() == Some("localhost"))
}

fn mode(rules: &Rules) -> Refusal {
    let mode = rules.mode.as_str();
    let detail = match rules.mode {
        Off => "this sandbox is in mode off: nothing outside it can be reached".to_owned(),
        Brokered => "this sandbox is in mode brokered: only named upstreams at \
                     http://127.0.0.1:8788/ can be reached"
            .to_owned(),
        _ => format!("mode {mode} lets no datagrams out; use TCP"),
    };
    Refusal::new(Code::ModeDenied, format!("mode {mode}"), detail)
}

fn unlisted(rules: &Rules, request: &Request, kind: Kind) -> Refusal {
    let (host, port) = (&request.host, request.port);
    let named = rules.allow.iter().any(|entry| entry.names(host));
    let detail = match kind {
        _ if !named => format!("{host} is not on the list of this sandbox"),
        Kind::Http => format!("{host} is not listed for plain http at port {port}; use https"),
        _ => format!("{host} is not listed for port {port}"),
    };
    Refusal::new(Code::PolicyDenied, "allow", detail)
}

fn this_host(rules: &Rules, request: &Request) -> Refusal {
    // Inside the sandbox, its own programs answer to this name.
    let detail = format!("{} is the sandbox itself; connect to it without a proxy", request.host);
    debug_assert!(rules.mode > Brokered && request.front != Front::Named);
    Refusal::new(Code::DestinationBlocked, "address loopback", detail)
}
