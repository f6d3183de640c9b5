//! M: a grid of requests that two parsers may read differently.

use guest_protocol::egress::Front;

use super::*;

/// What may stand between a request line and its body.
const FIELDS: [&str; 34] = [
    "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
    "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: 5, 6\r\n",
    "Content-Length: 5,5\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 0x5\r\n",
    "Content-Length: 5 \r\nContent-Length: 5\r\n",
    "Content-Length : 5\r\n",
    "Content-Length\t: 5\r\n",
    " Content-Length: 5\r\n",
    "X: y\r\n Content-Length: 5\r\n",
    "X: y\r\n\tTransfer-Encoding: chunked\r\n",
    "X: y\nContent-Length: 5\r\n",
    "X: y\rTransfer-Encoding: chunked\r\n",
    "X: y\0\r\nContent-Length: 5\r\n",
    "Transfer-Encoding: xchunked\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: identity, chunked\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Transfer-Encoding: \x0bchunked\r\n",
    "Transfer-Encoding:\r\n chunked\r\n",
    "Transfer-Encoding: \"chunked\"\r\n",
    "Transfer-Encoding: chunked;x\r\n",
    "Transfer-Encoding: x\r\n",
    "Transfer_Encoding: chunked\r\nContent-Length: 5\r\nContent-Length: 5\r\n",
    "Host: evil.test\r\n",
    "Connection: Content-Length\r\nContent-Length: 5\r\n",
    "Connection: Host\r\n",
    "Expect: x\r\n",
    "Content-Length: 5\r\nUpgrade: websocket\r\nConnection: upgrade\r\n",
    "Content-Length: 99999999999999999999\r\n",
];

const SMUGGLED: &str = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: api.good.test\r\n\r\n";

/// M-01, M-02 and their kind: 400, the connection closes, and nothing of it, nor
/// of what follows it, reaches an origin; what came before it is answered.
#[tokio::test]
async fn nothing_is_smuggled() {
    let Some(lab) = lab() else { return };
    for fields in FIELDS {
        for method in ["POST", "GET", "PUT", "DELETE"] {
            let first = "GET http://api.good.test/first HTTP/1.1\r\nHost: api.good.test\r\n\r\n";
            let second = format!(
                "{method} http://api.good.test/second HTTP/1.1\r\nHost: api.good.test\r\n{fields}\r\n{SMUGGLED}"
            );
            let answer = lab.exchange(Front::Proxy, format!("{first}{second}").as_bytes()).await;
            let statuses: Vec<_> = answer.matches("HTTP/1.1 ").collect();
            assert_eq!(statuses.len(), 2, "{fields:?}: {answer}");
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{fields:?}: {answer}");
            assert!(answer.contains("HTTP/1.1 400 Bad Request"), "{fields:?}: {answer}");
            assert_eq!(code(&answer), "invalid_request", "{fields:?}");
        }
    }
    let text = lab.log.text();
    assert!(text.contains("/first") && !text.contains("/second") && !text.contains("smuggled"));
}

/// M: chunks that go wrong end the request on both sides; the origin never takes
/// what follows for a request.
#[tokio::test]
async fn a_body_that_goes_wrong_is_cut_off() {
    let Some(lab) = lab() else { return };
    for chunks in [
        "5\r\nhelloX\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "x\r\n",
        "5 \r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "-5\r\nhello\r\n",
        "fffffffffffffffff\r\n",
        "5;\n\r\nhello\r\n",
        "0\r\nHost: evil.test\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\n\n",
        "5\r\nhello\r\r\n0\r\n\r\n",
    ] {
        let request = format!(
            "POST http://api.good.test/cut HTTP/1.1\r\nHost: api.good.test\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{SMUGGLED}"
        );
        let answer = lab.exchange(Front::Proxy, request.as_bytes()).await;
        assert!(!answer.contains("HTTP/1.1 200"), "{chunks:?}: {answer}");
    }
    assert!(!lab.log.text().contains("smuggled"), "{}", lab.log.text());
}
