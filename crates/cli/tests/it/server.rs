//! The program as a client, against a server that plays a part.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    thread,
};

use crate::program::{coldframe, run, token};

/// Answers one request and returns its head.
fn answer(status: &'static str, body: &'static str) -> (String, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut reader = BufReader::new(stream);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a line");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
            if line.trim().is_empty() {
                break;
            }
            head.push_str(&line);
        }
        let mut content = vec![0; length];
        reader.read_exact(&mut content).expect("the body");
        head.push_str(&String::from_utf8_lossy(&content));
        let kind = "application/problem+json";
        write!(
            reader.get_mut(),
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .expect("answered");
        head
    });
    (url, serving)
}

#[track_caller]
fn check(
    arguments: &[&str],
    status: &'static str,
    body: &'static str,
    code: i32,
) -> (String, String, String) {
    let state = tempfile::tempdir().expect("folder");
    let (url, serving) = answer(status, body);
    let mut command = coldframe(state.path(), arguments);
    let left = run(command.env("COLDFRAME_URL", url).env("COLDFRAME_TOKEN", token()));
    assert_eq!(left.code, Some(code), "{left:?}");
    (serving.join().expect("served"), left.stdout, left.stderr)
}

/// S91
#[test]
fn the_token_of_the_environment_is_presented() {
    let (request, stdout, _) = check(&["sandbox", "list"], "200 OK", r#"{"items":[]}"#, 0);
    assert!(request.contains(&format!("Bearer {}", token())), "{request}");
    assert_eq!(stdout, "");
}

#[test]
fn variables_travel_in_the_body_and_are_not_printed() {
    let arguments = ["sandbox", "create", "--env", "KEY=hunter2", "--json"];
    let body = r#"{"type":"about:blank","title":"","status":429,"code":"quota_exceeded","detail":"20 of 20"}"#;
    let (request, stdout, stderr) = check(&arguments, "429 Too Many Requests", body, 1);
    assert!(request.contains(r#""KEY":"hunter2""#), "{request}");
    assert!(!stdout.contains("hunter2") && !stderr.contains("hunter2"));
    assert!(stderr.contains("quota_exceeded"), "{stderr}");
}

#[test]
fn a_wrong_token_is_a_refusal_that_says_what_to_do() {
    let body =
        r#"{"type":"about:blank","title":"","status":401,"code":"unauthenticated","detail":"no"}"#;
    let (_, _, stderr) = check(&["sandbox", "list"], "401 Unauthorized", body, 1);
    assert!(stderr.contains("COLDFRAME_TOKEN"), "{stderr}");
}

#[test]
fn a_sandbox_that_is_not_there_any_more_has_a_way_forward() {
    const ID: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (status, body, said) in [
        (
            "409 Conflict",
            r#"{"status":409,"code":"sandbox_not_running","detail":"the sandbox has ended: x"}"#,
            "create another: `coldframe sandbox create`",
        ),
        (
            "404 Not Found",
            r#"{"status":404,"code":"not_found","detail":"there is no such sandbox"}"#,
            "`coldframe sandbox list`",
        ),
    ] {
        let (_, _, stderr) = check(&["sandbox", "logs", ID], status, body, 1);
        assert!(stderr.contains(said), "{stderr}");
    }
    let body = r#"{"status":400,"code":"invalid_request","detail":"template: there is no template \"x\""}"#;
    let create = ["sandbox", "create", "--template", "x"];
    let (_, _, stderr) = check(&create, "400 Bad Request", body, 2);
    assert!(stderr.contains("`coldframe image list`"), "{stderr}");
}

#[test]
fn what_is_not_a_server_is_not_believed() {
    let (_, _, stderr) = check(&["sandbox", "list"], "200 OK", "<html>", 3);
    assert!(stderr.contains("COLDFRAME_URL"), "{stderr}");
}
