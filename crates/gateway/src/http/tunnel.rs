//! What follows a permitted `CONNECT`, and every captured connection.
//!
//! The first bytes of the client decide: TLS has to name the permitted host and
//! is then moved untouched, or opened where a rule asks for it; HTTP is read
//! request by request; anything else passes only where the permit says so. Until
//! then nothing of the client reaches the destination. What the destination says
//! first (SSH, SMTP) is passed on meanwhile where anything may be spoken.

use std::{io, sync::Arc, time::SystemTime};

use domain::{allow::Scheme, host::Host};
use http::{Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use super::{
    body::Body,
    connection::{Connection, Scope, Speaks, raw, serve},
    pool::Protocol,
};
use crate::{
    client::{Client, Entry},
    code::{Code, Refusal},
    decide::{Content, Pinned},
    splice::splice,
    stream::{Stream, prefixed},
    tls::{
        hello::{self, Hello},
        provider,
        upstream::Offer,
    },
    upstream,
};

/// Methods that begin a request, for recognising one.
const METHODS: [&[u8]; 10] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"CONNECT ",
    b"OPTIONS ",
    b"TRACE ",
    b"PATCH ",
    b"PRI * HTTP",
];

/// Answers a `CONNECT` that was permitted: connects, then lets bytes follow.
pub(crate) async fn open(
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
    pinned: Pinned,
    entry: Entry,
) -> Result<Response<Body>, Refusal> {
    let client = connection.client.clone();
    let outer = upstream::dial(&pinned, client.engine.limits.dial).await?;
    let h2 = request.version() == Version::HTTP_2;
    let upgrading = hyper::upgrade::on(&mut request);
    let job = async move {
        let Ok(inner) = upgrading.await else { return };
        let inner: Stream =
            if h2 { Box::new(hyper_util::rt::TokioIo::new(inner)) } else { raw(inner) };
        run(client, inner, outer, pinned, entry).await;
    };
    // The receiver lives as long as the connection.
    drop(connection.jobs.send(Box::pin(job)));
    let empty = http_body_util::Empty::new().map_err(|never| match never {});
    Ok(Response::new(Body::new(empty)))
}

/// Moves what may be moved until it ends or the rules forbid it.
pub(crate) async fn run(
    client: Client,
    inner: Stream,
    outer: TcpStream,
    pinned: Pinned,
    entry: Entry,
) {
    let revoked = client.revoked_from(&pinned);
    let moving = moving(client, inner, outer, pinned, &entry);
    tokio::select! {
        ended = moving => match ended {
            Ok(()) => {}
            Err(End::Refused(refusal)) => entry.refused(&refusal),
            Err(End::Io(error)) => tracing::debug!(%error, "a tunnel ended"),
        },
        refusal = revoked => entry.refused(&refusal),
    }
}

enum End {
    Refused(Refusal),
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

async fn moving(
    client: Client,
    mut inner: Stream,
    mut outer: TcpStream,
    pinned: Pinned,
    entry: &Entry,
) -> Result<(), End> {
    let content = pinned.permit().content();
    let limits = client.engine.limits;
    let mut begun = Vec::new();
    let first = if content == Content::Unchecked {
        First::Other
    } else {
        first(&mut inner, &mut outer, &mut begun, content, &client, entry).await?
    };
    let tls = matches!(content, Content::Tls | Content::TlsOrHttp | Content::Anything);
    let http = matches!(content, Content::Http | Content::TlsOrHttp | Content::Anything);
    match first {
        First::Tls if tls => {
            let reading = hello::read(&mut inner, &mut begun);
            let hello = match timeout(limits.head, reading).await {
                Ok(Ok(hello)) => hello,
                Ok(Err(_)) | Err(_) => {
                    return Err(refuse(&mut inner, &pinned, "its TLS hello is malformed").await);
                }
            };
            if let Err(why) = named(&hello, &pinned) {
                return Err(refuse(&mut inner, &pinned, why).await);
            }
            if pinned.permit().intercept() {
                return intercept(client, prefixed(begun, inner), outer, pinned, hello).await;
            }
        }
        First::Http if http => {
            let scope = Scope::One(Box::new(pinned), Scheme::Http);
            let ready = Some((Box::new(outer) as Stream, Protocol::Http1));
            return Ok(serve(client, inner, begun, scope, Speaks::Http1, ready).await?);
        }
        First::Other if matches!(content, Content::Anything | Content::Unchecked) => {}
        First::Nothing => return Ok(()),
        First::Tls | First::Http | First::Other => {
            let request = pinned.request();
            let detail = format!(
                "{}:{} is permitted for something else than this",
                request.host, request.port
            );
            return Err(End::Refused(Refusal::new(Code::PolicyDenied, "content", detail)));
        }
    }
    outer.write_all(&begun).await?;
    entry.moved().up.fetch_add(begun.len() as u64, std::sync::atomic::Ordering::Relaxed);
    drop(begun);
    Ok(splice(&mut inner, &mut outer, entry.moved(), limits.idle).await?)
}

/// What a client says first.
enum First {
    Tls,
    Http,
    Other,
    /// It says nothing and goes.
    Nothing,
}

/// Reads until it is clear what the client speaks.
async fn first(
    inner: &mut Stream,
    outer: &mut TcpStream,
    begun: &mut Vec<u8>,
    content: Content,
    client: &Client,
    entry: &Entry,
) -> Result<First, End> {
    let limits = client.engine.limits;
    // Elsewhere the client speaks first.
    let greeting = content == Content::Anything;
    let bound = if greeting { limits.idle } else { limits.head };
    let deadline = tokio::time::Instant::now() + bound;
    let mut greeted = false;
    loop {
        if let Some(first) = recognise(begun) {
            return Ok(first);
        }
        let mut space = [0; 1024];
        tokio::select! {
            read = inner.read_buf(begun) => if read? == 0 {
                return Ok(if begun.is_empty() && !greeted { First::Nothing } else { First::Other });
            },
            read = outer.read(&mut space), if greeting => {
                let read = read?;
                if read == 0 {
                    inner.shutdown().await?;
                    return Ok(First::Nothing);
                }
                greeted = true;
                inner.write_all(&space[..read]).await?;
                inner.flush().await?;
                entry.moved().down.fetch_add(read as u64, std::sync::atomic::Ordering::Relaxed);
            }
            () = tokio::time::sleep_until(deadline) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
    }
}

/// What `bytes` begin, once that is clear.
fn recognise(bytes: &[u8]) -> Option<First> {
    let byte = *bytes.first()?;
    if byte == hello::HANDSHAKE {
        return Some(First::Tls);
    }
    let matches = |method: &&&[u8]| {
        let known = bytes.len().min(method.len());
        bytes[..known].eq_ignore_ascii_case(&method[..known])
    };
    let mut candidates = METHODS.iter().filter(matches).peekable();
    if candidates.peek().is_none() {
        return Some(First::Other);
    }
    candidates.any(|method| bytes.len() >= method.len()).then_some(First::Http)
}

/// Whether a hello names the permitted host.
///
/// An address has no name, so a hello to one names none. A hello that hides
/// another names nobody for sure; where a list decides, it is refused.
fn named(hello: &Hello, pinned: &Pinned) -> Result<(), &'static str> {
    let listed = pinned.permit().content() != Content::Anything;
    if hello.hidden && listed {
        return Err("its TLS hello is encrypted (ECH)");
    }
    match (&hello.name, &pinned.request().host) {
        (Some(name), host) if name == host => Ok(()),
        (None, Host::Address(_)) => Ok(()),
        (None, Host::Name(_)) => Err("its TLS hello names no host"),
        (Some(_), _) => Err("its TLS hello names another host"),
    }
}

/// Ends a handshake that names somebody else; nothing was sent to anybody.
async fn refuse(inner: &mut Stream, pinned: &Pinned, why: &str) -> End {
    let alert = async {
        inner.write_all(hello::UNRECOGNIZED_NAME).await?;
        inner.shutdown().await
    };
    // Whether the client still listens changes nothing.
    drop(timeout(std::time::Duration::from_secs(5), alert).await);
    let request = pinned.request();
    let detail = format!("the connection to {}:{} was ended: {why}", request.host, request.port);
    End::Refused(Refusal::new(Code::SniMismatch, "sni", detail))
}

/// Opens the TLS of a connection: verified outside first, then answered inside
/// under the sandbox's own authority, with what both sides speak.
async fn intercept(
    client: Client,
    inner: Stream,
    outer: TcpStream,
    pinned: Pinned,
    hello: Hello,
) -> Result<(), End> {
    let engine = client.engine.clone();
    let host = &pinned.request().host;
    let offer = if hello.h2 { Offer::Either } else { Offer::Http1 };
    let outer = engine
        .trust
        .connect(host, outer, offer, engine.limits.dial)
        .await
        .map_err(|error| End::Refused(upstream::unreachable(&pinned, &tls_failure(&error))))?;
    let h2 = outer.get_ref().1.alpn_protocol() == Some(b"h2");
    let leaf =
        engine.authorities.leaf(&client.sandbox, host, SystemTime::now()).map_err(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "no certificate for a sandbox"
            );
            End::Refused(Refusal::new(
                Code::InternalError,
                "intercept",
                "TLS cannot be opened here",
            ))
        })?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(leaf)));
    let protocol = if h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() };
    config.alpn_protocols = vec![protocol];
    let accepting = TlsAcceptor::from(Arc::new(config)).accept(inner);
    let inner = timeout(engine.limits.head, accepting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let (speaks, protocol) =
        if h2 { (Speaks::Http2, Protocol::Http2) } else { (Speaks::Http1, Protocol::Http1) };
    let scope = Scope::One(Box::new(pinned), Scheme::Https);
    let ready = Some((Box::new(outer) as Stream, protocol));
    Ok(serve(client, Box::new(inner), Vec::new(), scope, speaks, ready).await?)
}

/// What a failed handshake says, without what the destination sent.
pub(crate) fn tls_failure(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("its certificate is not valid: {why:?}")
        }
        Some(_) => "it does not speak TLS as it should".to_owned(),
        None => error.kind().to_string(),
    }
}
