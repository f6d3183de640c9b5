//! Requests that have one reading, and those that have not.

use proptest::prelude::*;

use super::*;

/// Everything of `bytes` that passes, and why no more does.
fn pass(bytes: &[u8]) -> (usize, Result<(), Malformed>) {
    let mut requests = Requests::default();
    let mut passed = 0;
    loop {
        match requests.pass(&bytes[passed..]) {
            Ok(0) => return (passed, Ok(())),
            Ok(more) => passed += more,
            Err(error) => return (passed, Err(error)),
        }
    }
}

/// The same, in pieces of `size` bytes, as a socket might bring them.
fn pass_in_pieces(bytes: &[u8], size: usize) -> (usize, Result<(), Malformed>) {
    let mut requests = Requests::default();
    let (mut passed, mut seen) = (0, 0);
    loop {
        match requests.pass(&bytes[passed..seen]) {
            Ok(0) if seen == bytes.len() => return (passed, Ok(())),
            Ok(0) => seen = (seen + size).min(bytes.len()),
            Ok(more) => passed += more,
            Err(error) => return (passed, Err(error)),
        }
    }
}

const HOST: &str = "Host: api.good.test\r\n";

/// M-01, M-02 and their kind: what has two readings has none here.
#[test]
fn what_has_two_readings_does_not_pass() {
    use Malformed as M;
    let post = |fields: &str, body: &str| format!("POST / HTTP/1.1\r\n{HOST}{fields}\r\n{body}");
    for (bytes, expected) in [
        (post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nG"), M::Coding),
        (post("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", "0\r\n\r\nG"), M::Coding),
        (post("Content-Length: 5\r\nContent-Length: 6\r\n", "AAAAAA"), M::Length),
        (post("Content-Length: 5\r\nContent-Length: 5\r\n", "AAAAA"), M::Length),
        (post("Content-Length: 5, 5\r\n", "AAAAA"), M::Length),
        (post("Content-Length: +5\r\n", "AAAAA"), M::Length),
        (post("Content-Length: -1\r\n", ""), M::Length),
        (post("Content-Length: 0x5\r\n", "AAAAA"), M::Length),
        (post("Content-Length: 5 5\r\n", "AAAAA"), M::Length),
        (post("Content-Length:\r\n", ""), M::Length),
        (post("Content-Length: 99999999999999999999\r\n", ""), M::Length),
        (post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), M::Coding),
        (post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), M::Coding),
        (post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"), M::Coding),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", ""), M::Coding),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", ""), M::Coding),
        (post("Transfer-Encoding: \"chunked\"\r\n", ""), M::Coding),
        (post("Transfer-Encoding: \x0bchunked\r\n", ""), M::Line),
        (post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), M::Field),
        (post("Content-Length : 5\r\n", "AAAAA"), M::Field),
        (post(" Content-Length: 5\r\n", "AAAAA"), M::Field),
        (post("X: a\r\n b\r\n", ""), M::Field),
        (post("X: a\r\n\tb\r\n", ""), M::Field),
        (post("X\r\n", ""), M::Field),
        (post(": x\r\n", ""), M::Field),
        (post("X: a\rContent-Length: 5\r\n", ""), M::Line),
        (post("X: a\nContent-Length: 5\r\n", ""), M::Line),
        (post("X: a\0b\r\n", ""), M::Line),
        (post("X\u{e9}: a\r\n", ""), M::Field),
        (post("Host: evil.test\r\n", ""), M::Host),
        (post("hOST: api.good.test\r\n", ""), M::Host),
        (post("Connection: close, Host\r\n", ""), M::Connection),
        (post("Connection: Content-Length\r\nContent-Length: 5\r\n", "AAAAA"), M::Connection),
        (post("Expect: 200-ok\r\n", ""), M::Expect),
        (post("Upgrade: websocket\r\nContent-Length: 5\r\n", "AAAAA"), M::Upgrade),
        ("GET / HTTP/1.1\r\n\r\n".into(), M::Host),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n".into(), M::Host),
        (format!("GET / HTTP/1.1\n{HOST}\r\n"), M::Line),
        (format!("GET / HTTP/1.1\r\n{HOST}\n"), M::Line),
        (format!("\r\nGET / HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("\nGET / HTTP/1.1\r\n{HOST}\r\n"), M::Line),
        (format!("GET  / HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("GET\t/ HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!(" GET / HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("GET / x HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("GET /\u{e9} HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("GET /#x HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("GET / HTTP/1.2\r\n{HOST}\r\n"), M::Request),
        (format!("GET / HTTP/2.0\r\n{HOST}\r\n"), M::Request),
        (format!("GET / http/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("GET /\r\n{HOST}\r\n"), M::Request),
        (format!("G(T / HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("connect a.test:1 HTTP/1.1\r\n{HOST}\r\n"), M::Request),
        (format!("POST / HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n"), M::Coding),
        (format!("CONNECT a.test:1 HTTP/1.1\r\n{HOST}Content-Length: 5\r\n\r\nAAAAA"), M::Upgrade),
        (format!("GET / HTTP/1.1\r\n{HOST}X: {}\r\n\r\n", "a".repeat(MAX_HEAD)), M::Large),
        (format!("GET / HTTP/1.1\r\n{HOST}{}\r\n", "A: b\r\n".repeat(MAX_HEADERS)), M::Large),
    ] {
        assert_eq!(pass(bytes.as_bytes()), (0, Err(expected)), "{bytes:.300}");
        assert_eq!(pass_in_pieces(bytes.as_bytes(), 1), (0, Err(expected)), "{bytes:.300}");
    }
}

/// M: what is between chunks has one reading too. What came before passes.
#[test]
fn a_bad_chunk_ends_it() {
    use Malformed as M;
    let head = format!("POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n");
    for (good, bad, expected) in [
        ("", "x\r\n", M::Chunk),
        ("", "\r\n", M::Chunk),
        ("", "-1\r\n", M::Chunk),
        ("", "0x5\r\n", M::Chunk),
        ("", "5 \r\nAAAAA\r\n", M::Chunk),
        ("", " 5\r\nAAAAA\r\n", M::Chunk),
        ("", "5\nAAAAA\r\n", M::Chunk),
        ("", "5\rAAAAA\r\n", M::Chunk),
        ("", "5;a\nb\r\nAAAAA\r\n", M::Chunk),
        ("", "10000000000000005\r\nAAAAA\r\n", M::Chunk),
        ("", "fffffffffffffffff\r\n", M::Chunk),
        ("5\r\nAAAAA", "\n0\r\n\r\n", M::Chunk),
        ("5\r\nAAAAA", "0\r\n\r\n", M::Chunk),
        ("5\r\nAAAAA\r", "\r\n", M::Chunk),
        ("0\r\n", "X : a\r\n\r\n", M::Trailer),
        ("0\r\n", "Content-Length: 5\r\n\r\n", M::Trailer),
        ("0\r\n", "Host: evil.test\r\n\r\n", M::Trailer),
        ("0\r\n", "X-Coldframe-Session: 1\r\n\r\n", M::Trailer),
        ("0\r\nX: a\r\n", "\n", M::Trailer),
        ("0\r\n", "GET / HTTP/1.1\r\n", M::Trailer),
    ] {
        let bytes = format!("{head}{good}{bad}");
        let expected = (head.len() + good.len(), Err(expected));
        assert_eq!(pass(bytes.as_bytes()), expected, "{bytes}");
        assert_eq!(pass_in_pieces(bytes.as_bytes(), 1), expected, "{bytes}");
    }
}

/// What clients really send passes whole.
#[test]
fn what_is_right_passes() {
    for bytes in [
        format!("GET / HTTP/1.1\r\n{HOST}\r\n"),
        format!(
            "GET http://a.test/x?y=%20 HTTP/1.1\r\n{HOST}Accept: */*\r\n\r\nGET / HTTP/1.1\r\n{HOST}\r\n"
        ),
        format!(
            "POST / HTTP/1.1\r\n{HOST}Content-Length: 5\r\n\r\nAAAAAGET / HTTP/1.1\r\n{HOST}\r\n"
        ),
        format!("POST / HTTP/1.1\r\n{HOST}Content-Length:0\r\nExpect: 100-Continue\r\n\r\n"),
        format!(
            "POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: Chunked\r\n\r\n5;a=\"b\"\r\nAAAAA\r\n00\r\nX: y\r\n\r\nGET / HTTP/1.1\r\n{HOST}\r\n"
        ),
        "CONNECT a.test:443 HTTP/1.1\r\n\r\n\x16\x03\x01".to_owned(),
        "CONNECT a.test:443 HTTP/1.0\r\n\r\n".to_owned(),
        "GET http://a.test/ HTTP/1.0\r\n\r\n".to_owned(),
        format!("GET /ws HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
        format!("OPTIONS * HTTP/1.1\r\n{HOST}X-Empty:\r\nX-Bytes: \u{e9}\r\n\r\n"),
    ] {
        assert_eq!(pass(bytes.as_bytes()), (bytes.len(), Ok(())), "{bytes}");
        for size in [1, 3, 7] {
            assert_eq!(pass_in_pieces(bytes.as_bytes(), size), (bytes.len(), Ok(())), "{bytes}");
        }
    }
}

/// R: a head that does not end is refused at its bound, in linear time.
#[test]
fn an_endless_head_is_refused() {
    let mut requests = Requests::default();
    let mut bytes = b"GET / HTTP/1.1\r\nX: ".to_vec();
    while bytes.len() <= MAX_HEAD {
        assert_eq!(requests.pass(&bytes), Ok(0));
        bytes.extend_from_slice(&[b'a'; 256]);
    }
    assert_eq!(requests.pass(&bytes), Err(Malformed::Large));
}

/// Pieces from which requests can be put together, right ones and wrong ones.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "GET ",
        "POST ",
        "/",
        "/x",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\n",
        "\r",
        "\0",
        " ",
        "\t",
        "Host: a.test\r\n",
        "Host: b.test\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: 0\r\n",
        "Content-Length : 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: x\r\n",
        "X: y",
        ":",
        "\r\n\r\n",
        "abc",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "A",
        ";x",
        "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|all| all.concat().into_bytes())
}

/// What another parser reads in the first head: its length, method, target, and
/// the fields.
type Parsed = (usize, String, String, Vec<(String, Vec<u8>)>);

fn other(bytes: &[u8]) -> Option<Parsed> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(length) = request.parse(bytes).ok()? else { return None };
    let fields = request.headers.iter();
    let fields = fields.map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()));
    Some((length, request.method?.into(), request.path?.into(), fields.collect()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever passes is read the same by another parser: where the head ends,
    /// what it asks for, and how its body ends.
    #[test]
    fn another_parser_reads_what_passes_the_same(bytes in pieces()) {
        let (passed, _) = pass(&bytes);
        if let Some(end) = head::end(&bytes, 0).ok().flatten().filter(|end| *end <= passed) {
            let ours = head(&bytes[..end]).unwrap();
            let (length, method, target, fields) = other(&bytes).expect("it reads what passes");
            prop_assert_eq!(length, end);
            prop_assert_eq!(ours.method, method);
            prop_assert_eq!(ours.target, target);
            let all = |name: &str| fields.iter().filter(|field| field.0 == name).count();
            prop_assert!(all("content-length") + all("transfer-encoding") <= 1);
            prop_assert!(all("host") <= 1);
            if let Body::Length(length) = ours.body && length > 0 {
                let value = length.to_string();
                prop_assert!(fields.iter().any(|field| field.0 == "content-length" && field.1 == value.as_bytes()));
            }
        }
    }

    /// How a socket cuts the bytes changes nothing.
    #[test]
    fn pieces_pass_as_the_whole_does(bytes in pieces(), size in 1usize..9) {
        prop_assert_eq!(pass(&bytes), pass_in_pieces(&bytes, size));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (passed, _) = pass(&bytes);
        prop_assert!(passed <= bytes.len());
    }
}
