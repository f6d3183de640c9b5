//! Whereto a request is: read once, from every place where it stands.
//!
//! A request names its destination in its target, its `Host` and, in HTTP/2, its
//! `:authority`; within a tunnel, in what the tunnel was made for. They all say
//! the same or the request is refused.

use domain::{allow::Scheme, host::Host};
use http::{HeaderMap, Method, Request, Version, header, uri::PathAndQuery};

use crate::{
    code::{Code, Refusal},
    decide::destination,
};

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Bytes both ways.
    Tunnel(Host, u16),
    /// A plain request.
    Plain(Host, u16),
}

/// Reads what a request to a forward proxy asks for.
pub fn of_proxy<B>(request: &Request<B>) -> Result<Target, Refusal> {
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let h2 = request.version() == Version::HTTP_2;
    if request.method() == Method::CONNECT {
        let (host, port) = destination(authority.unwrap_or_default(), None)?;
        agrees(request.headers(), &host, port, None)?;
        return Ok(Target::Tunnel(host, port));
    }
    match (request.uri().scheme_str(), authority) {
        (Some("http"), Some(authority)) => {
            let (host, port) = destination(authority, Some(Scheme::Http.port()))?;
            agrees(request.headers(), &host, port, Some(Scheme::Http.port()))?;
            if h2 {
                lengths(request.headers())?;
            }
            Ok(Target::Plain(host, port))
        }
        (Some(_), _) => Err(invalid("for anything but http, ask for a tunnel with CONNECT")),
        (None, _) => Err(invalid("this is a proxy: name the destination, as in GET http://HOST/")),
    }
}

/// Checks that a request on a connection to one destination is for it.
pub fn of_one<B>(
    request: &Request<B>,
    host: &Host,
    port: u16,
    scheme: Scheme,
) -> Result<(), Refusal> {
    if request.method() == Method::CONNECT {
        return Err(invalid("CONNECT leads nowhere from here"));
    }
    let uri = request.uri();
    if request.version() == Version::HTTP_2 {
        let authority = uri.authority().ok_or_else(|| invalid("the authority is missing"))?;
        same(authority.as_str(), host, port, Some(scheme.port()))?;
        lengths(request.headers())?;
    } else if uri.authority().is_some() || uri.scheme().is_some() {
        return Err(invalid("this is no proxy: the target is a path"));
    }
    agrees(request.headers(), host, port, Some(scheme.port()))
}

/// Reads the name and the rest of a named path, the rest in its canonical form.
pub fn of_named<B>(request: &Request<B>) -> Result<(String, PathAndQuery), Refusal> {
    let uri = request.uri();
    let whole = uri.authority().is_some() || uri.scheme().is_some();
    if request.method() == Method::CONNECT || whole || request.version() == Version::HTTP_2 {
        return Err(invalid("this port has named paths only, as in GET /NAME/; it is no proxy"));
    }
    let path = uri.path();
    clear(path)?;
    let (name, rest) = match path[1..].split_once('/') {
        Some((name, rest)) => (name, format!("/{rest}")),
        None => (&path[1..], String::new()),
    };
    let rest = match uri.query() {
        Some(query) => format!("{}?{query}", if rest.is_empty() { "/" } else { &rest }),
        None => rest,
    };
    let rest = if rest.is_empty() { "/".to_owned() } else { rest };
    let rest = rest.parse().map_err(|_| ambiguous())?;
    Ok((name.to_owned(), rest))
}

/// Refuses a path that somebody reads as another one: segments that step back,
/// however they are spelt, separators that are encoded, and empty segments.
fn clear(path: &str) -> Result<(), Refusal> {
    let lower = path.to_ascii_lowercase();
    let encoded = ["%2f", "%5c", "%00", "%25"].iter().any(|code| lower.contains(code));
    let steps = |segment: &str| {
        let segment = segment.replace("%2e", ".");
        let segment = segment.split(';').next().unwrap_or_default().to_owned();
        segment == "." || segment == ".."
    };
    let inner = lower.strip_prefix('/').ok_or_else(ambiguous)?;
    let empty = inner.strip_suffix('/').unwrap_or(inner).split('/').any(str::is_empty);
    let valid = lower.match_indices('%').all(|(at, _)| {
        lower.get(at + 1..at + 3).is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    if encoded || !valid || lower.contains('\\') || empty || lower.split('/').any(steps) {
        return Err(ambiguous());
    }
    Ok(())
}

/// Every `Host` says the same as the target.
fn agrees(headers: &HeaderMap, host: &Host, port: u16, own: Option<u16>) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => Ok(()),
        (Some(one), None) => {
            let text = one.to_str().map_err(|_| invalid("the Host header is not readable"))?;
            same(text, host, port, own.or(Some(port)))
        }
        (Some(_), Some(_)) => Err(invalid("there is more than one Host header")),
    }
}

fn same(raw: &str, host: &Host, port: u16, own: Option<u16>) -> Result<(), Refusal> {
    if destination(raw, own)? == (host.clone(), port) {
        return Ok(());
    }
    let detail = format!("the request names another host than {host}:{port}");
    Err(Refusal::new(Code::SniMismatch, "host", detail))
}

/// HTTP/2 ends a body by its frames; a length beside it is one, and a number.
fn lengths(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let number = |value: &http::HeaderValue| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= 18 && bytes.iter().all(u8::is_ascii_digit)
    };
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None) if number(one) => Ok(()),
        _ => Err(invalid("the Content-Length is not one number")),
    }
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(Code::InvalidRequest, "http", why)
}

fn ambiguous() -> Refusal {
    let why = "the path has more than one reading: no encoded separators, no empty or stepping-back segments";
    Refusal::new(Code::AmbiguousPath, "path", why)
}

#[cfg(test)]
mod tests;
