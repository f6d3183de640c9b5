//! Whereto a request is, from every place where it stands.

use super::*;

fn request(method: &str, uri: &str, host: Option<&str>, version: Version) -> Request<()> {
    let mut builder = Request::builder().method(method).uri(uri).version(version);
    if let Some(host) = host {
        builder = builder.header("host", host);
    }
    builder.body(()).unwrap()
}

fn host(raw: &str) -> Host {
    raw.parse().unwrap()
}

const H1: Version = Version::HTTP_11;
const H2: Version = Version::HTTP_2;

/// K26, M: a proxy's request names one destination in every place.
#[test]
fn a_proxied_request_names_one_destination() {
    let tunnel = |name, port| Ok(Target::Tunnel(host(name), port));
    let plain = |name, port| Ok(Target::Plain(host(name), port));
    for (method, uri, header, version, expected) in [
        ("CONNECT", "a.test:443", Some("a.test:443"), H1, tunnel("a.test", 443)),
        ("CONNECT", "A.Test.:443", Some("a.test"), H1, tunnel("a.test", 443)),
        ("CONNECT", "a.test:443", None, H1, tunnel("a.test", 443)),
        ("CONNECT", "a.test:443", None, H2, tunnel("a.test", 443)),
        ("CONNECT", "0x7f.1:443", None, H1, tunnel("127.0.0.1", 443)),
        ("CONNECT", "[::ffff:127.0.0.1]:1", None, H1, tunnel("127.0.0.1", 1)),
        ("CONNECT", "a.test:443", Some("b.test:443"), H1, Err(Code::SniMismatch)),
        ("CONNECT", "a.test:443", Some("a.test:444"), H1, Err(Code::SniMismatch)),
        ("CONNECT", "a.test", None, H1, Err(Code::InvalidDestination)),
        ("CONNECT", "u@a.test:443", None, H1, Err(Code::InvalidDestination)),
        ("GET", "http://a.test/x", Some("a.test"), H1, plain("a.test", 80)),
        ("GET", "http://a.test:80/x", Some("A.test"), H1, plain("a.test", 80)),
        ("GET", "http://a.test:8080/", Some("a.test:8080"), H2, plain("a.test", 8080)),
        ("GET", "http://a.test/", Some("b.test"), H1, Err(Code::SniMismatch)),
        ("GET", "http://a.test/", Some("a.test:81"), H1, Err(Code::SniMismatch)),
        ("GET", "http://u:p@a.test/", Some("a.test"), H1, Err(Code::InvalidDestination)),
        ("GET", "https://a.test/", Some("a.test"), H1, Err(Code::InvalidRequest)),
        ("GET", "ftp://a.test/", Some("a.test"), H1, Err(Code::InvalidRequest)),
        ("GET", "/x", Some("a.test"), H1, Err(Code::InvalidRequest)),
        ("OPTIONS", "*", Some("a.test"), H1, Err(Code::InvalidRequest)),
    ] {
        let request = request(method, uri, header, version);
        let read = of_proxy(&request).map_err(|refusal| refusal.code);
        assert_eq!(read, expected, "{method} {uri} {header:?}");
    }
}

/// H-01, K26: within a connection to one destination, no other is asked for.
#[test]
fn a_request_in_a_tunnel_is_for_its_destination() {
    let good = host("api.good.test");
    for (method, uri, header, version, expected) in [
        ("GET", "/x", Some("api.good.test"), H1, Ok(())),
        ("GET", "/x", Some("API.good.test.:443"), H1, Ok(())),
        ("GET", "https://api.good.test/x", None, H2, Ok(())),
        ("GET", "https://api.good.test/x", Some("api.good.test"), H2, Ok(())),
        ("GET", "https://evil.test/x", None, H2, Err(Code::SniMismatch)),
        ("GET", "https://api.good.test/x", Some("evil.test"), H2, Err(Code::SniMismatch)),
        ("GET", "/x", Some("evil.test"), H1, Err(Code::SniMismatch)),
        ("GET", "/x", Some("api.good.test:444"), H1, Err(Code::SniMismatch)),
        ("GET", "http://api.good.test/x", Some("api.good.test"), H1, Err(Code::InvalidRequest)),
        ("CONNECT", "api.good.test:443", None, H1, Err(Code::InvalidRequest)),
    ] {
        let request = request(method, uri, header, version);
        let read = of_one(&request, &good, 443, Scheme::Https).map_err(|refusal| refusal.code);
        assert_eq!(read, expected, "{method} {uri} {header:?}");
    }
}

/// H-02: two lengths, or one that is no number.
#[test]
fn http2_has_one_length_or_none() {
    for (values, good) in
        [(&["5"][..], true), (&["5", "5"], false), (&["+5"], false), (&[""], false)]
    {
        let mut request = request("POST", "https://a.test/", None, H2);
        for value in values {
            request.headers_mut().append("content-length", value.parse().unwrap());
        }
        let read = of_one(&request, &host("a.test"), 443, Scheme::Https);
        assert_eq!(read.is_ok(), good, "{values:?}");
    }
}

/// L46: named paths are no proxy, and stay below their base.
#[test]
fn a_named_path_has_one_reading() {
    for (uri, name, rest) in [
        ("/model/v1/messages", "model", "/v1/messages"),
        ("/model/", "model", "/"),
        ("/model", "model", "/"),
        ("/model?x=../y", "model", "/?x=../y"),
        ("/model/a%20b?q=%2e%2e%2f", "model", "/a%20b?q=%2e%2e%2f"),
        ("/model/..a/.b/c.", "model", "/..a/.b/c."),
    ] {
        let request = request("GET", uri, Some("127.0.0.1:8788"), H1);
        let expected = (name.to_owned(), rest.parse().unwrap());
        assert_eq!(of_named(&request), Ok(expected), "{uri}");
    }
    for uri in [
        "/model/../x",
        "/model/..",
        "/model/./x",
        "/model/%2e%2e/x",
        "/model/.%2E/x",
        "/model/%2E/x",
        "/model/..;a/x",
        "/model/a%2fb",
        "/model/a%5Cb",
        "/model/%252e%252e/x",
        "/model/%00",
        "/model//x",
        "//model/x",
        "/model/%zz",
        "/model/%2",
        "/..",
        "/%2e%2e/x",
    ] {
        let request = request("GET", uri, Some("127.0.0.1:8788"), H1);
        let refused = of_named(&request).unwrap_err();
        assert_eq!(refused.code, Code::AmbiguousPath, "{uri}");
    }
    for (method, uri) in [("CONNECT", "a.test:443"), ("GET", "http://a.test/model/")] {
        let request = request(method, uri, Some("a.test"), H1);
        assert_eq!(of_named(&request).unwrap_err().code, Code::InvalidRequest);
    }
}
