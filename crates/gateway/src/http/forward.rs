//! Requests on their way: judged, cleaned, sent once.

use std::sync::Arc;

use domain::allow::Scheme;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use super::{
    body::{Body, Counted, Revoked, Way},
    connection::{Connection, key, raw},
    fields,
    pool::{Key, Protocol, SendError, Sender},
    target::{self, Target},
    tunnel,
};
use crate::{
    client::{Entry, read},
    code::{Code, Refusal},
    decide::{Kind, Pinned, Request as Asked, judge, judge_named, permit_named},
    journal::Text,
    splice::splice,
    stream::Stream,
    tls::upstream::Offer,
    upstream,
};

/// Answers a request to the forward proxy.
pub(crate) async fn proxied(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let asked = target::of_proxy(&request);
    let client = &connection.client;
    let destination = match &asked {
        Ok(Target::Tunnel(host, port) | Target::Plain(host, port)) => {
            Text::destination(host, *port)
        }
        Err(_) => written(&request),
    };
    let (entry, identified) = client.entry(destination);
    identified?;
    let refused = |refusal: Refusal| {
        entry.refused(&refusal);
        refusal
    };
    match asked.map_err(refused)? {
        Target::Tunnel(host, port) => {
            let pinned = client.pin(Kind::Tunnel, host, port, &entry).await.map_err(refused)?;
            tunnel::open(connection, request, pinned, entry.clone()).await.map_err(refused)
        }
        Target::Plain(host, port) => {
            let key = Key { host, port, scheme: Scheme::Http };
            let rules = client.rules();
            let asked =
                Asked { front: client.front, kind: Kind::Http, host: key.host.clone(), port };
            let permit = judge(&rules, &asked).map_err(refused)?;
            entry.rule(permit.rule());
            // A connection that is there leads to what was pinned for it.
            let (pinned, sender) = match connection.pool.take(&key) {
                Some(sender) => (None, Some(sender)),
                None => {
                    let pinned = client.engine.resolver.pin(permit.clone()).await;
                    (Some(pinned.map_err(refused)?), None)
                }
            };
            let revoked = client.revoked(move |rules| {
                judge(rules, &asked)
                    .and_then(|now| if now == permit { Ok(()) } else { Err(changed()) })
            });
            let way = Sending { connection, entry: &entry, key, pinned, base: String::new() };
            way.send(request, sender, Box::pin(revoked)).await.map_err(refused)
        }
    }
}

/// Answers a request on a connection to one destination.
pub(crate) async fn to_one(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    pinned: &Pinned,
    scheme: Scheme,
) -> Result<Response<Body>, Refusal> {
    let client = &connection.client;
    let one = pinned.request();
    let (entry, identified) = client.entry(Text::destination(&one.host, one.port));
    identified?;
    entry.rule(pinned.permit().rule());
    let refused = |refusal: Refusal| {
        entry.refused(&refusal);
        refusal
    };
    target::of_one(&request, &one.host, one.port, scheme).map_err(refused)?;
    let key = key(pinned, scheme);
    let sender = connection.pool.take(&key);
    let revoked = client.revoked_from(pinned);
    let pinned = Some(pinned.clone());
    let way = Sending { connection, entry: &entry, key, pinned, base: String::new() };
    way.send(request, sender, Box::pin(revoked)).await.map_err(refused)
}

/// Answers a request to a named path.
pub(crate) async fn named(
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let asked = target::of_named(&request);
    let client = &connection.client;
    let destination = match &asked {
        Ok((name, _)) => Text::from(format!("/{name}/").as_str()),
        Err(_) => written(&request),
    };
    let (entry, identified) = client.entry(destination);
    identified?;
    let refused = |refusal: Refusal| {
        entry.refused(&refusal);
        refusal
    };
    let (name, rest) = asked.map_err(refused)?;
    let rules = client.rules();
    let upstream = judge_named(&rules, &name).map_err(refused)?.clone();
    entry.rule(&format!("upstream {name}"));
    *request.uri_mut() = Uri::from(rest);
    let (host, port, scheme) = (upstream.host.clone(), upstream.port, upstream.scheme);
    let key = Key { host, port, scheme };
    let sender = connection.pool.take(&key);
    let pinned = match &sender {
        Some(_) => None,
        None => {
            let permit = permit_named(&upstream);
            Some(client.engine.resolver.pin(permit).await.map_err(refused)?)
        }
    };
    let base = upstream.base.clone();
    let revoked = client.revoked(move |rules| {
        let now = judge_named(rules, &name)?;
        if *now == upstream { Ok(()) } else { Err(changed()) }
    });
    let way = Sending { connection, entry: &entry, key, pinned, base };
    way.send(request, sender, Box::pin(revoked)).await.map_err(refused)
}

/// One request that was permitted.
struct Sending<'a> {
    connection: &'a Arc<Connection>,
    entry: &'a Entry,
    key: Key,
    /// Where to connect to; absent where a connection is there.
    pinned: Option<Pinned>,
    /// Goes in front of the path.
    base: String,
}

impl Sending<'_> {
    async fn send(
        &self,
        mut request: Request<Incoming>,
        sender: Option<Sender>,
        mut revoked: Revoked,
    ) -> Result<Response<Body>, Refusal> {
        let version = request.version();
        if version == Version::HTTP_2
            && request.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0")
            && !request.body().is_end_stream()
        {
            return Err(Refusal::new(
                Code::InvalidRequest,
                "http",
                "a body of no length has bytes",
            ));
        }
        let protocol = fields::upgrade(request.headers()).filter(|_| version != Version::HTTP_2);
        let upgrading = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let mut sender = match sender {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let request = self.outgoing(request, protocol.clone(), sender.protocol())?;
        let limits = self.connection.client.engine.limits;
        let sending = async {
            match sender.send(request).await {
                Err(SendError::Unsent(unsent)) => {
                    // The destination closed a connection that was kept.
                    sender = self.connect().await?;
                    let request = self.again(*unsent, sender.protocol())?;
                    sender.send(request).await.map_err(|error| self.broken(error))
                }
                other => other.map_err(|error| self.broken(error)),
            }
        };
        let answer = tokio::select! {
            answer = timeout(limits.answer, sending) => answer.map_err(|_| self.silent())??,
            refusal = &mut revoked => return Err(refusal),
        };
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(upgrading), Some(protocol)) = (upgrading, protocol) else {
                return Err(self.unexpected("it changed the protocol unasked"));
            };
            return Ok(self.upgraded(answer, upgrading, protocol, revoked, version));
        }
        self.connection.pool.put(self.key.clone(), sender);
        let (mut head, body) = answer.into_parts();
        fields::strip_hop(&mut head.headers);
        fields::strip_tags(&mut head.headers);
        head.version = version;
        let body = Counted::new(body, self.entry.clone(), Way::Down, Some(revoked));
        Ok(Response::from_parts(head, Body::new(body)))
    }

    /// The request as it is sent on.
    fn outgoing(
        &self,
        request: Request<Incoming>,
        upgrade: Option<HeaderValue>,
        protocol: Protocol,
    ) -> Result<Request<Body>, Refusal> {
        let (mut head, body) = request.into_parts();
        fields::strip_hop(&mut head.headers);
        head.headers.remove(header::EXPECT);
        if head.version == Version::HTTP_2 {
            crumbs(&mut head.headers);
        }
        if let Some(upgrade) = upgrade {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(header::UPGRADE, upgrade);
        }
        let path = head.uri.path_and_query().map_or("/", uri::PathAndQuery::as_str);
        let path = format!("{}{path}", self.base);
        head.uri = path.parse().map_err(|_| self.unexpected("the path cannot be sent"))?;
        let body = if body.is_end_stream() && head.headers.get(header::TRAILER).is_none() {
            Body::new(http_body_util::Empty::new().map_err(|never| match never {}))
        } else {
            let counted = Counted::new(body, self.entry.clone(), Way::Up, None);
            Body::new(counted)
        };
        self.again(Request::from_parts(head, body), protocol)
    }

    /// Names the destination in the way of the protocol.
    fn again(
        &self,
        mut request: Request<Body>,
        protocol: Protocol,
    ) -> Result<Request<Body>, Refusal> {
        let Key { host, port, scheme } = &self.key;
        let authority = match *port == scheme.port() {
            true => host.to_string(),
            false => format!("{host}:{port}"),
        };
        let invalid = || self.unexpected("the destination cannot be written");
        let path = request.uri().path_and_query().cloned();
        match protocol {
            Protocol::Http1 => {
                let value = HeaderValue::from_str(&authority).map_err(|_| invalid())?;
                request.headers_mut().insert(header::HOST, value);
                *request.version_mut() = Version::HTTP_11;
                *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
            }
            Protocol::Http2 => {
                request.headers_mut().remove(header::HOST);
                *request.version_mut() = Version::HTTP_2;
                let mut parts = uri::Parts::default();
                parts.scheme = Some(match scheme {
                    Scheme::Https => uri::Scheme::HTTPS,
                    Scheme::Http => uri::Scheme::HTTP,
                });
                parts.authority = Some(authority.parse().map_err(|_| invalid())?);
                parts.path_and_query = path;
                *request.uri_mut() = Uri::from_parts(parts).map_err(|_| invalid())?;
            }
        }
        Ok(request)
    }

    /// A new connection to what was pinned.
    async fn connect(&self) -> Result<Sender, Refusal> {
        let engine = &self.connection.client.engine;
        let pinned = match &self.pinned {
            Some(pinned) => pinned,
            // A kept connection broke; the client may ask again.
            None => return Err(self.unexpected("it closed the connection; try again")),
        };
        let stream = upstream::dial(pinned, engine.limits.dial).await?;
        let stream: Stream = match self.key.scheme {
            Scheme::Http => Box::new(stream),
            Scheme::Https => {
                let opening =
                    engine.trust.connect(&self.key.host, stream, Offer::Http1, engine.limits.dial);
                let stream = opening
                    .await
                    .map_err(|error| upstream::unreachable(pinned, &tunnel::tls_failure(&error)))?;
                Box::new(stream)
            }
        };
        let began = self.connection.pool.begin(stream, Protocol::Http1).await;
        began.map_err(|_| self.unexpected("it does not speak HTTP"))
    }

    /// Two connections that are bytes from now on.
    fn upgraded(
        &self,
        mut answer: Response<Incoming>,
        upgrading: hyper::upgrade::OnUpgrade,
        protocol: HeaderValue,
        revoked: Revoked,
        version: Version,
    ) -> Response<Body> {
        let outer = hyper::upgrade::on(&mut answer);
        let (mut head, _) = answer.into_parts();
        fields::strip_hop(&mut head.headers);
        fields::strip_tags(&mut head.headers);
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(header::UPGRADE, protocol);
        head.version = version;
        let entry = self.entry.clone();
        let idle = self.connection.client.engine.limits.idle;
        let job = async move {
            let Ok((inner, outer)) = tokio::try_join!(upgrading, outer) else { return };
            let (mut inner, mut outer) = (raw(inner), raw(outer));
            let moving = splice(&mut inner, &mut outer, entry.moved(), idle);
            tokio::select! {
                _ = moving => {}
                refusal = revoked => entry.refused(&refusal),
            }
        };
        // The receiver lives as long as the connection.
        drop(self.connection.jobs.send(Box::pin(job)));
        let empty = http_body_util::Empty::new().map_err(|never| match never {});
        Response::from_parts(head, Body::new(empty))
    }

    fn broken(&self, error: SendError) -> Refusal {
        if let SendError::Failed(error) = error {
            tracing::debug!(error = &error as &dyn std::error::Error, "a request failed");
        }
        self.unexpected("it broke the connection off")
    }

    fn silent(&self) -> Refusal {
        self.unexpected("it did not answer in time")
    }

    fn unexpected(&self, why: &str) -> Refusal {
        let detail = format!("{}:{}: {why}", self.key.host, self.key.port);
        Refusal::new(Code::Unreachable, "upstream", detail)
    }
}

/// Joins what HTTP/2 lets a client send in pieces.
fn crumbs(headers: &mut http::HeaderMap) {
    let all: Vec<_> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if all.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&all.join(b"; ".as_slice()))
    {
        headers.insert(header::COOKIE, joined);
    }
}

/// What was asked for, where it has no reading: host and port at most, never a
/// path.
fn written<B>(request: &Request<B>) -> Text {
    let raw = request.uri().authority().map_or("", uri::Authority::as_str);
    // What stands before an @ may be a password.
    let raw = raw.rsplit('@').next().unwrap_or_default();
    let default = (request.method() != Method::CONNECT).then_some(80);
    if raw.is_empty() { "no destination".into() } else { read(raw, default).0 }
}

fn changed() -> Refusal {
    Refusal::new(Code::PolicyDenied, "rules", "the rules changed; connect again")
}
