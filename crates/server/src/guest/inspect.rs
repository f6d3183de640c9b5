//! What a request asks for, found out before it is forwarded.
//!
//! The audit log wants the name of a program and the path of a file, so the
//! first message of a start and the one message of a change of files are read
//! here, up to a bound, and then sent on byte for byte. The reader refuses what
//! two readers could understand differently: repeated fields, compressed
//! envelopes, unknown parameters.

use api::{exec::OnDisconnect, guest::ON_DISCONNECT};
use bytes::{Bytes, BytesMut};
use control::guest::GuestCall;
use guest_protocol::{
    client::{Body, BoxError, USER_HEADER},
    connect,
    filesystem::{MoveRequest, PathRequest},
    process::StartRequest,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::table::{Form, Route};
use crate::{
    error::ApiError,
    input::{self, expect_type},
    limits,
    memory::Share,
};

/// The length of an envelope's head: a flag byte and a big-endian `u32`.
const HEAD: usize = 5;
/// The longest tag that a guest keeps whole.
const MOST_TAG: usize = 256;

/// Headers of a client that a guest gets to see, where the form allows them.
const PASSED: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::RANGE,
    HeaderName::from_static("connect-protocol-version"),
    HeaderName::from_static("connect-timeout-ms"),
    HeaderName::from_static("keepalive-ping-interval"),
];

/// The parameters of `/files`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    path: String,
}

/// What a request turned out to be.
#[derive(Debug)]
pub(crate) struct Inspected {
    /// What it asks for.
    pub(crate) call: GuestCall,
    /// It, as the guest shall get it.
    pub(crate) request: Request<Body>,
    /// The tag of a process that shall not outlive its client.
    pub(crate) leash: Option<String>,
}

/// Reads as much of `request` as needed to say what it asks for.
///
/// What is held for it is taken from `share`.
pub(crate) async fn inspect(
    route: Route,
    request: Request<Body>,
    share: &mut Share,
) -> Result<Inspected, ApiError> {
    let (parts, body) = request.into_parts();
    let headers = pass(&parts.headers, route)?;
    check_type(&parts.headers, route)?;
    let mut path = parts.uri.path().to_owned();
    let mut leash = None;
    let (call, body) = match route {
        Route::FileRead => {
            let file = file_path(&parts.uri)?;
            path = with_path(&path, &file);
            (GuestCall::FileRead { path: file }, empty())
        }
        Route::FileWrite => {
            let file = file_path(&parts.uri)?;
            path = with_path(&path, &file);
            let size = http_body::Body::size_hint(&body).exact();
            (GuestCall::FileWrite { path: file, size }, body)
        }
        Route::ProcessStart => {
            let (start, body) = first_message::<StartRequest>(body, share).await?;
            let (program, arguments) = (start.process.cmd, start.process.args.len());
            if on_disconnect(&parts.headers)? == OnDisconnect::Kill {
                let tag = start.tag.filter(|tag| (1..=MOST_TAG).contains(&tag.len()));
                let reason = "`kill` needs a tag of 1 to 256 bytes in the start";
                leash = Some(tag.ok_or_else(|| ApiError::field(ON_DISCONNECT, reason))?);
            }
            (GuestCall::ProcessStart { program, arguments }, body)
        }
        Route::Remove => {
            let (request, body) = whole_message::<PathRequest>(body, share).await?;
            (GuestCall::FileRemove { path: checked(request.path)? }, body)
        }
        Route::DirectoryMake => {
            let (request, body) = whole_message::<PathRequest>(body, share).await?;
            (GuestCall::DirectoryMake { path: checked(request.path)? }, body)
        }
        Route::Move => {
            let (request, body) = whole_message::<MoveRequest>(body, share).await?;
            let (from, to) = (checked(request.source)?, checked(request.destination)?);
            (GuestCall::FileMove { from, to }, body)
        }
        Route::Health => (GuestCall::Health, empty()),
        Route::Metrics => (GuestCall::Metrics, empty()),
        Route::ProcessList => (GuestCall::ProcessList, body),
        Route::ProcessConnect => (GuestCall::ProcessConnect, body),
        Route::ProcessInput | Route::ProcessInputStream => (GuestCall::ProcessInput, body),
        Route::ProcessSignal => (GuestCall::ProcessSignal, body),
        Route::ProcessUpdate => (GuestCall::ProcessUpdate, body),
        Route::Stat => (GuestCall::FileStat, body),
        Route::DirectoryList => (GuestCall::DirectoryList, body),
        Route::Watch | Route::Watcher => (GuestCall::Watch, body),
    };
    let mut forwarded = Request::builder().method(parts.method).uri(path).body(body);
    if let Ok(request) = &mut forwarded {
        *request.headers_mut() = headers;
    }
    // The path is one of the table's, with a query that was encoded here.
    let request = forwarded.map_err(|_| ApiError::invalid("the request cannot be forwarded"))?;
    Ok(Inspected { call, request, leash })
}

/// What shall become of a process when its client goes away.
fn on_disconnect(headers: &HeaderMap) -> Result<OnDisconnect, ApiError> {
    let Some(word) = headers.get(ON_DISCONNECT) else { return Ok(OnDisconnect::default()) };
    let word = word.to_str().unwrap_or_default();
    word.parse().map_err(|error| ApiError::field(ON_DISCONNECT, error))
}

/// The headers that go in. Authorization, cookies and everything about the
/// connection stay outside; the account becomes the guest's own form.
fn pass(given: &HeaderMap, route: Route) -> Result<HeaderMap, ApiError> {
    let mut passed = HeaderMap::new();
    for name in PASSED {
        if let Some(value) = given.get(&name) {
            passed.insert(name, value.clone());
        }
    }
    if route == Route::FileWrite {
        for (name, value) in given {
            let metadata = name.as_str().starts_with("x-metadata-");
            if metadata || *name == header::CONTENT_ENCODING {
                passed.insert(name, value.clone());
            }
        }
    }
    if let Some(user) = given.get(USER_HEADER) {
        let user = user.to_str().ok().filter(|user| is_account(user));
        let user =
            user.ok_or_else(|| ApiError::field("x-coldframe-user", "not an account name"))?;
        passed.insert(header::AUTHORIZATION, basic(user));
    }
    passed.insert(header::HOST, HeaderValue::from_static("guest"));
    passed.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(passed)
}

/// Whether `name` could be an account: what `useradd` accepts.
pub(crate) fn is_account(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c == '_';
    name.len() <= 32
        && name.chars().next().is_some_and(letter)
        && name.chars().all(|c| letter(c) || c.is_ascii_digit() || c == '-')
}

fn basic(user: &str) -> HeaderValue {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:")));
    // Base64 and a word are always a header value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

fn check_type(headers: &HeaderMap, route: Route) -> Result<(), ApiError> {
    match route.form() {
        Form::None => Ok(()),
        // A form with several parts names its files inside, where nobody looks.
        Form::Content => expect_type(headers, "application/octet-stream"),
        Form::Unary => expect_type(headers, connect::UNARY),
        Form::Stream => expect_type(headers, connect::STREAM),
    }
}

fn file_path(uri: &Uri) -> Result<String, ApiError> {
    let parameters = axum::extract::Query::<Parameters>::try_from_uri(uri)
        .map_err(|error| ApiError::invalid(error.body_text()))?;
    checked(parameters.0.path)
}

/// A path that a kernel could be asked for. Where it leads is the guest's to
/// say: every path is one inside the sandbox.
pub(crate) fn checked(path: String) -> Result<String, ApiError> {
    if path.is_empty() {
        return Err(ApiError::field("path", "must not be empty"));
    }
    if path.len() > limits::PATH_BYTES {
        return Err(ApiError::field("path", format!("longer than {} bytes", limits::PATH_BYTES)));
    }
    if path.contains('\0') {
        return Err(ApiError::field("path", "must not hold a NUL byte"));
    }
    Ok(path)
}

/// `/files?path=…` with everything but unreserved characters escaped.
pub(crate) fn with_path(endpoint: &str, path: &str) -> String {
    let mut text = format!("{endpoint}?path=");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Reads the first enveloped message; the body returned begins with it again.
async fn first_message<T: DeserializeOwned>(
    mut body: Body,
    share: &mut Share,
) -> Result<(T, Body), ApiError> {
    let mut head = BytesMut::new();
    let reading = async {
        while let Some(missing) = missing(&head)? {
            let frame = body.frame().await.transpose().map_err(|_| broke_off())?;
            let frame = frame.ok_or_else(|| {
                ApiError::invalid(format!("the first message lacks {missing} bytes"))
            })?;
            if let Ok(data) = frame.into_data() {
                if !share.grow(data.len()) {
                    return Err(ApiError::busy());
                }
                head.extend_from_slice(&data);
            }
        }
        Ok::<_, ApiError>(())
    };
    timeout(limits::BODY_TIME, reading).await.map_err(|_| ApiError::slow_client())??;
    let head = head.freeze();
    let length = HEAD + announced(&head).unwrap_or_default();
    let message = parse(&head[HEAD..length])?;
    let first = futures::stream::iter([Ok(http_body::Frame::data(head))]);
    let rest = futures::stream::unfold(body, |mut body| async {
        body.frame().await.map(|frame| (frame, body))
    });
    Ok((message, StreamBody::new(futures::StreamExt::chain(first, rest)).boxed_unsync()))
}

/// How many bytes the first envelope still lacks; none when it is whole.
fn missing(head: &[u8]) -> Result<Option<usize>, ApiError> {
    if head.first().is_some_and(|flags| *flags != 0) {
        return Err(ApiError::invalid("compressed messages are not accepted"));
    }
    let Some(length) = announced(head) else { return Ok(Some(HEAD - head.len())) };
    if length > limits::INSPECTED {
        return Err(ApiError::too_large(limits::INSPECTED));
    }
    Ok((HEAD + length).checked_sub(head.len()).filter(|missing| *missing > 0))
}

fn announced(head: &[u8]) -> Option<usize> {
    let length = head.get(1..HEAD)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// Reads the one message of a unary call.
async fn whole_message<T: DeserializeOwned>(
    body: Body,
    share: &mut Share,
) -> Result<(T, Body), ApiError> {
    let bytes = input::collect(axum::body::Body::new(body), limits::INSPECTED, share).await?;
    let message = parse(&bytes)?;
    Ok((message, Full::new(bytes).map_err(never).boxed_unsync()))
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(json).map_err(|error| ApiError::invalid(error.to_string()))
}

fn empty() -> Body {
    Empty::<Bytes>::new().map_err(never).boxed_unsync()
}

fn never(never: std::convert::Infallible) -> BoxError {
    match never {}
}

fn broke_off() -> ApiError {
    ApiError::invalid("the body broke off")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    const MIB: usize = 1024 * 1024;

    fn body(bytes: &[u8]) -> Body {
        Full::new(Bytes::copy_from_slice(bytes)).map_err(never).boxed_unsync()
    }

    fn start(length: u32, json: &str) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(json.as_bytes());
        bytes
    }

    async fn check(bytes: &[u8]) -> Result<(GuestCall, Bytes), ApiError> {
        let request = Request::post("/process.Process/Start")
            .header("content-type", "application/connect+json")
            .header("authorization", "Bearer outer")
            .header("cookie", "a=b")
            .header("x-coldframe-user", "root")
            .body(body(bytes))
            .unwrap();
        let share = &mut Memory::new(MIB).share();
        let inspected = inspect(Route::ProcessStart, request, share).await?;
        let Inspected { call, request, .. } = inspected;
        assert_eq!(request.headers()["authorization"], "Basic cm9vdDo=");
        assert!(!request.headers().contains_key("cookie"));
        Ok((call, request.into_body().collect().await.unwrap().to_bytes()))
    }

    #[tokio::test]
    async fn a_start_is_read_and_forwarded_byte_for_byte() {
        let json = r#"{"process":{"cmd":"/bin/sh","args":["-c","secret"]},"future":1}"#;
        let wire = start(json.len() as u32, json);
        let (call, forwarded) = check(&wire).await.unwrap();
        assert_eq!(forwarded, wire);
        assert!(
            matches!(call, GuestCall::ProcessStart { program, arguments: 2 } if program == "/bin/sh")
        );
    }

    /// Whoever wants a process ended must name it, in a word that is known.
    #[tokio::test]
    async fn a_process_on_a_leash_has_a_tag() {
        let tag = |tag: &str| format!(r#"{{"process":{{"cmd":"a"}},"tag":"{tag}"}}"#);
        for (word, json, expected) in [
            ("kill", tag("t"), Ok(Some("t"))),
            ("continue", tag("t"), Ok(None)),
            ("kill", tag(""), Err(400)),
            ("kill", tag(&"t".repeat(257)), Err(400)),
            ("kill", r#"{"process":{"cmd":"a"}}"#.to_owned(), Err(400)),
            ("stop", tag("t"), Err(400)),
        ] {
            let wire = start(json.len() as u32, &json);
            let request = Request::post("/process.Process/Start")
                .header("content-type", "application/connect+json")
                .header(ON_DISCONNECT, word)
                .body(body(&wire))
                .unwrap();
            let share = &mut Memory::new(MIB).share();
            let found = inspect(Route::ProcessStart, request, share).await;
            let found = found.map(|found| {
                assert!(!found.request.headers().contains_key(ON_DISCONNECT));
                found.leash
            });
            let found = found.map_err(|error| error.status().as_u16());
            assert_eq!(found, expected.map(|tag| tag.map(str::to_owned)), "{word} {json:.50}");
        }
    }

    #[tokio::test]
    async fn a_start_that_cannot_be_read_is_refused() {
        for (bytes, status) in [
            (Vec::new(), 400),
            (vec![0, 0], 400),
            (vec![1, 0, 0, 0, 2, b'{', b'}'], 400),
            (start(3, "{}"), 400),
            (start(2, "12"), 400),
            (start(u32::MAX, "{}"), 413),
            (start(27, r#"{"process":{},"process":{}}"#), 400),
        ] {
            let error = check(&bytes).await.unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{bytes:?}: {error}");
        }
    }

    /// F-01
    #[tokio::test]
    async fn a_path_is_one_value_whatever_it_holds() {
        let request =
            Request::get("/files?path=%2Fa%0Ab%26user%3Droot%252e").body(body(b"")).unwrap();
        let share = &mut Memory::new(MIB).share();
        let inspected = inspect(Route::FileRead, request, share).await.unwrap();
        let Inspected { call, request, .. } = inspected;
        assert_eq!(request.uri(), "/files?path=/a%0Ab%26user%3Droot%252e");
        assert!(matches!(call, GuestCall::FileRead { path } if path == "/a\nb&user=root%2e"));
        for query in ["", "?path=", "?path=a%00.png", "?path=a&username=root", "?path=a&path=b"] {
            let request = Request::get(format!("/files{query}")).body(body(b"")).unwrap();
            let error =
                inspect(Route::FileRead, request, &mut Memory::new(MIB).share()).await.unwrap_err();
            assert_eq!(error.status().as_u16(), 400, "{query}");
        }
    }

    #[tokio::test]
    async fn a_wrong_content_type_is_refused() {
        for (path, route, kind) in [
            ("/filesystem.Filesystem/Remove", Route::Remove, "application/proto"),
            ("/process.Process/Start", Route::ProcessStart, "application/json"),
            ("/files?path=a", Route::FileWrite, "multipart/form-data; boundary=b"),
        ] {
            let request = Request::post(path).header("content-type", kind).body(body(b"{}"));
            let share = &mut Memory::new(MIB).share();
            let error = inspect(route, request.unwrap(), share).await.unwrap_err();
            assert_eq!(error.status().as_u16(), 415, "{path}");
        }
    }

    #[test]
    fn an_account_is_a_plain_word() {
        assert!(is_account("user") && is_account("_x-1"));
        for name in ["", "1a", "a:b", "a b", "Root", "a\n", &"a".repeat(33)] {
            assert!(!is_account(name), "{name:?}");
        }
    }
}
