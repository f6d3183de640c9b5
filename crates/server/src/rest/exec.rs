//! Running one command to its end, with its output in the answer.
//!
//! The output is captured up to a bound and then read on and dropped, so that
//! the command is not disturbed and memory stays flat (R-02). Memory is paid for
//! as the output comes, for the answer that it becomes as well: when there is
//! none left the output is cut, for an answer that could not be given would take
//! away what the command did. The time limit is the guest's to enforce; a guest
//! that does not is cut off a little later.

use std::time::{Duration, Instant};

use api::exec as wire;
use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use domain::{environment::Environment, id::SandboxId};
use guest_protocol::{
    client::{ClientError, GuestClient, ProcessStream},
    connect::{self, Code},
    process::{EndEvent, Event, Output, ProcessConfig, Selector, StartRequest},
};

use super::files::called;
use crate::{
    app::App,
    caller::Authenticated,
    error::ApiError,
    guest::{Door, Leash, is_account},
    input, limits,
    memory::{Paid, Share},
};

/// Bytes of standard input that travel in one message.
const INPUT_PIECE: usize = 64 * 1024;
/// More than an answer takes beside the outputs.
const MOST_FRAME: usize = 4 * 1024;
/// How much of the guest's word for the end is passed on.
const MOST_STATUS: usize = 128;

/// Run a command
///
/// Waits for its end and answers with what it wrote. Output beyond
/// `max_output_bytes` is dropped and marked; the command is not disturbed. A
/// command that outlives `timeout_seconds` is killed, and with `on_disconnect`
/// set to `kill` also one whose client hangs up.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec", tag = "sandboxes",
    security(("token" = ["sandboxes:write"])),
    params(("id" = String, Path)),
    request_body = wire::ExecRequest,
    responses(
        (status = 200, description = "The command ran, whatever its exit code", body = wire::ExecResult),
        (status = 400, description = "`invalid_request`, `unknown_user`", body = api::problem::Problem),
        (status = 404, description = "`not_found`, `path_not_found`", body = api::problem::Problem),
        (status = 409, description = "`sandbox_not_running`", body = api::problem::Problem),
        (status = 413, description = "`body_too_large`", body = api::problem::Problem),
    )
)]
pub(crate) async fn exec(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    input::Id(id): input::Id<SandboxId>,
    input::Json(request, _share): input::Json<wire::ExecRequest, { limits::EXEC_JSON }>,
) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let plan = Plan::new(request)?;
    let (patience, stop) = (plan.limit + app.exec_grace, app.stop.clone());
    let mut capture = Capture::new(plan.keep, app.memory.share())?;
    let door = Door::new(app, caller, id);
    let mut leash = plan.start.tag.clone().map(|tag| Leash::new(door.clone(), tag));
    let client = GuestClient::new(door);
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(ApiError::stopping()),
        ended = run(&client, &plan, &mut capture) => ended,
        () = tokio::time::sleep(patience) => Ok(Ended::TimedOut),
    };
    // From here on it is not the client that ends it.
    leash.iter_mut().for_each(Leash::let_go);
    let ended = ended?;
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(answer(capture, ended, duration_ms))
}

/// A checked request.
struct Plan {
    start: StartRequest,
    user: String,
    stdin: Option<Vec<u8>>,
    limit: Duration,
    keep: usize,
}

/// How a command ended.
enum Ended {
    By(EndEvent),
    TimedOut,
}

impl Plan {
    fn new(request: wire::ExecRequest) -> Result<Self, ApiError> {
        let (cmd, args) = match (request.cmd, request.command) {
            (Some(cmd), None) => {
                let mut words = cmd.into_iter();
                let program = words.next().filter(|program| !program.is_empty());
                let program = program.ok_or_else(|| ApiError::field("cmd", "names no program"))?;
                (program, words.collect())
            }
            (None, Some(line)) => ("/bin/bash".to_owned(), vec!["-l".into(), "-c".into(), line]),
            _ => return Err(ApiError::invalid("give either cmd or command")),
        };
        let words = std::iter::once(&cmd).chain(&args).chain(&request.cwd);
        if words.into_iter().any(|word: &String| word.contains('\0')) {
            return Err(ApiError::invalid("neither the command nor cwd can hold a NUL byte"));
        }
        let environment =
            Environment::new(request.env.0).map_err(|error| ApiError::field("env", error))?;
        let envs = environment.expose().map(|(name, value)| (name.into(), value.into())).collect();
        let user = request.user.unwrap_or_else(|| "user".into());
        if !is_account(&user) {
            return Err(ApiError::field("user", "not an account name"));
        }
        let stdin = request.stdin.map(|text| STANDARD.decode(text)).transpose();
        let stdin = stdin.map_err(|_| ApiError::field("stdin", "not base64"))?;
        let seconds = request.timeout_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let limit = seconds.unwrap_or(limits::DEFAULT_EXEC);
        if limit.is_zero() || limit > limits::MAX_EXEC {
            return Err(ApiError::field("timeout_seconds", "must be 1 to 3600"));
        }
        let keep = request.max_output_bytes.unwrap_or(limits::DEFAULT_OUTPUT);
        if keep > limits::MAX_OUTPUT {
            let reason = format!("must be at most {}", limits::MAX_OUTPUT);
            return Err(ApiError::field("max_output_bytes", reason));
        }
        let start = StartRequest {
            process: ProcessConfig { cmd, args, envs, cwd: request.cwd },
            stdin: Some(stdin.is_some()),
            // What is to be ended needs a name before it has a number.
            tag: (request.on_disconnect == Some(wire::OnDisconnect::Kill)).then(tag),
            pty: None,
        };
        Ok(Self { start, user, stdin, limit, keep: keep as usize })
    }
}

fn tag() -> String {
    format!("exec-{}", domain::base32::encode(&rand::random::<[u8; 16]>()))
}

/// Starts the command, feeds it, and reads it to its end.
async fn run(
    client: &GuestClient<Door>,
    plan: &Plan,
    capture: &mut Capture,
) -> Result<Ended, ApiError> {
    let mut process = match client.start(&plan.start, &plan.user, Some(plan.limit)).await {
        Ok(process) => process,
        Err(error) if is_deadline(&error) => return Ok(Ended::TimedOut),
        Err(error) => return Err(called(error)),
    };
    let feeding = feed(client, process.pid(), plan.stdin.as_deref());
    let reading = read(&mut process, capture);
    tokio::pin!(feeding, reading);
    // A command need not read what it is given; its end is what counts.
    tokio::select! {
        biased;
        ended = &mut reading => ended,
        () = &mut feeding => reading.await,
    }
}

async fn feed(client: &GuestClient<Door>, pid: u32, stdin: Option<&[u8]>) {
    let Some(stdin) = stdin else { return };
    let (pipe, sending) = client.input(Selector::Pid(pid));
    let writing = async {
        for piece in stdin.chunks(INPUT_PIECE) {
            if pipe.write(piece.to_vec()).await.is_err() {
                break;
            }
        }
        drop(pipe);
    };
    if let ((), Err(error)) = tokio::join!(writing, sending) {
        tracing::debug!(%error, "a command did not take all of its input");
    }
}

async fn read(process: &mut ProcessStream, capture: &mut Capture) -> Result<Ended, ApiError> {
    loop {
        match process.next().await {
            Ok(Event::Data(Output::Stdout(bytes) | Output::Pty(bytes))) => {
                capture.stdout.push(&bytes.0, &mut capture.share);
            }
            Ok(Event::Data(Output::Stderr(bytes))) => {
                capture.stderr.push(&bytes.0, &mut capture.share)
            }
            Ok(Event::End(end)) => return Ok(ended(process, end).await),
            Ok(Event::Start(_) | Event::Keepalive(_)) => {}
            Err(error) if is_deadline(&error) => return Ok(Ended::TimedOut),
            Err(error) => return Err(called(error)),
        }
    }
}

/// A killed command ends like any other; what follows says whether it was the
/// time limit that killed it.
async fn ended(process: &mut ProcessStream, end: EndEvent) -> Ended {
    match process.next().await {
        Err(error) if is_deadline(&error) => Ended::TimedOut,
        _ => Ended::By(end),
    }
}

fn is_deadline(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(connect::Error { code: Code::DeadlineExceeded, .. }))
}

/// Both outputs so far, and what they and the answer take of the memory.
struct Capture {
    stdout: Kept,
    stderr: Kept,
    share: Share,
}

impl Capture {
    /// Room for the answer of a command that writes nothing.
    fn new(most: usize, mut share: Share) -> Result<Self, ApiError> {
        if !share.grow(MOST_FRAME) {
            return Err(ApiError::busy());
        }
        let kept = || Kept { bytes: Vec::new(), most, cut: false };
        Ok(Self { stdout: kept(), stderr: kept(), share })
    }
}

/// The beginning of an output.
struct Kept {
    bytes: Vec<u8>,
    most: usize,
    cut: bool,
}

impl Kept {
    fn push(&mut self, more: &[u8], share: &mut Share) {
        let room = &more[..more.len().min(self.most - self.bytes.len())];
        // What follows a gap would be worth nothing.
        let kept = if self.cut || !share.grow(cost(room)) { 0 } else { room.len() };
        self.cut |= kept < more.len();
        self.bytes.extend_from_slice(&more[..kept]);
    }

    /// The output as text, or else as base64. A cut through a character does not
    /// make text into bytes.
    fn finish(mut self) -> (Option<String>, Option<String>, bool) {
        if self.cut
            && let Err(error) = std::str::from_utf8(&self.bytes)
            && error.error_len().is_none()
        {
            self.bytes.truncate(error.valid_up_to());
        }
        match String::from_utf8(self.bytes) {
            Ok(text) => (Some(text), None, self.cut),
            Err(error) => (None, Some(STANDARD.encode(error.as_bytes())), self.cut),
        }
    }
}

/// At most what these bytes take as they are and as JSON, where a control
/// character is written with six. Base64 is made from the bytes and written from
/// there, which is less than three for each byte at any time.
fn cost(bytes: &[u8]) -> usize {
    let written = |byte: &u8| if *byte < 0x20 { 6 } else { 2 };
    bytes.len() + bytes.iter().map(written).sum::<usize>()
}

/// The answer, which holds its share of the memory until the client has it.
fn answer(capture: Capture, ended: Ended, duration_ms: u64) -> Response {
    let timed_out = matches!(ended, Ended::TimedOut);
    let end = match ended {
        Ended::By(end) => end,
        Ended::TimedOut => {
            EndEvent { exit_code: -1, status: "signal: killed".into(), ..Default::default() }
        }
    };
    let Capture { stdout, stderr, mut share } = capture;
    let (stdout, stdout_base64, stdout_cut) = stdout.finish();
    let (stderr, stderr_base64, stderr_cut) = stderr.finish();
    let result = wire::ExecResult {
        stdout,
        stdout_base64,
        stderr,
        stderr_base64,
        exit_code: end.exit_code,
        // The guest's words, and longer than any it has.
        status: end.status.chars().take(MOST_STATUS).collect(),
        duration_ms,
        truncated: wire::Truncated { stdout: stdout_cut, stderr: stderr_cut },
        timed_out,
    };
    let mut body = Vec::new();
    // Texts and numbers always serialise.
    drop(serde_json::to_writer(&mut body, &result));
    drop(result);
    body.shrink_to_fit();
    share.shrink(body.len());
    let json = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(share.hold(body)));
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response.extensions_mut().insert(Paid);
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::memory::Memory;

    #[track_caller]
    fn check(pieces: &[&[u8]], most: usize, expected: (Option<&str>, Option<&str>, bool)) {
        let mut capture = Capture::new(most, Memory::new(1 << 20).share()).unwrap();
        pieces.iter().for_each(|piece| capture.stdout.push(piece, &mut capture.share));
        let (text, base64, cut) = capture.stdout.finish();
        assert_eq!((text.as_deref(), base64.as_deref(), cut), expected);
    }

    /// R-02, S88
    #[test]
    fn output_is_kept_up_to_the_bound_and_marked() {
        check(&[b"ab", b"c"], 3, (Some("abc"), None, false));
        check(&[b"ab", b"cd"], 3, (Some("abc"), None, true));
        check(&[b"\xff"], 3, (None, Some("/w=="), false));
        check(&["aé".as_bytes()], 2, (Some("a"), None, true));
        check(&[b"a\xc3"], 2, (None, Some("YcM="), false));
        check(&[b"x"], 0, (Some(""), None, true));
    }

    /// A server that has no memory left keeps less and says so.
    #[test]
    fn output_is_cut_when_memory_is_short() {
        let memory = Memory::new(3 * 16 * 1024);
        let mut capture = Capture::new(1 << 20, memory.share()).unwrap();
        for piece in [&[b'x'; 10 * 1024][..], &[b'x'; 10 * 1024], b"x"] {
            capture.stdout.push(piece, &mut capture.share);
        }
        let (text, _, cut) = capture.stdout.finish();
        assert_eq!((text.unwrap().len(), cut), (10 * 1024, true));
        assert!(Capture::new(0, Memory::new(0).share()).is_err());
    }

    /// R-02: what is paid for is what is held, whatever the output is made of.
    #[tokio::test]
    async fn an_answer_is_never_larger_than_its_share() {
        for byte in [0, b'\n', b'"', b'x', 0x7f, 0xff] {
            let memory = Memory::new(1 << 20);
            let mut capture = Capture::new(100_000, memory.share()).unwrap();
            capture.stdout.push(&[byte; 100_000], &mut capture.share);
            let before = memory.left();
            let response = answer(capture, Ended::TimedOut, 1);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!((1 << 20) - before >= (100_000 + body.len() - MOST_FRAME) as u64, "{byte}");
            let held = (1 << 20) - usize::try_from(memory.left()).unwrap();
            assert!((body.len()..body.len() + 16 * 1024).contains(&held), "{byte}: {held}");
            drop(body);
            assert_eq!(memory.left(), 1 << 20);
        }
    }

    #[test]
    fn a_request_that_makes_no_sense_is_refused() {
        for json in [
            "{}",
            r#"{"cmd":[]}"#,
            r#"{"cmd":[""]}"#,
            r#"{"cmd":["a"],"command":"b"}"#,
            r#"{"cmd":["a\u0000"]}"#,
            r#"{"cmd":["a"],"user":"a:b"}"#,
            r#"{"cmd":["a"],"stdin":"%"}"#,
            r#"{"cmd":["a"],"timeout_seconds":0}"#,
            r#"{"cmd":["a"],"timeout_seconds":3601}"#,
            r#"{"cmd":["a"],"max_output_bytes":8388609}"#,
            r#"{"cmd":["a"],"env":{"A=B":""}}"#,
        ] {
            let request: wire::ExecRequest = serde_json::from_str(json).unwrap();
            assert!(Plan::new(request).is_err(), "{json}");
        }
    }
}
