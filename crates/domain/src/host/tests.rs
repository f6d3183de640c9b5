//! Every spelling of a host, and what has none.

use proptest::prelude::*;

use super::*;

fn canonical(raw: &str) -> Option<String> {
    raw.parse::<Host>().ok().map(|host| host.to_string())
}

/// S-02, W-02: every spelling of one host is one host.
#[test]
fn every_spelling_has_one_form() {
    for (raw, expected) in [
        ("good.test", "good.test"),
        ("GOOD.Test", "good.test"),
        ("good.test.", "good.test"),
        ("ｇｏｏｄ.test", "good.test"),
        ("good。test", "good.test"),
        ("go\u{ad}od.test", "good.test"),
        ("bücher.test", "xn--bcher-kva.test"),
        ("XN--BCHER-KVA.test", "xn--bcher-kva.test"),
        ("_dmarc.good.test", "_dmarc.good.test"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0177.0.0.01", "127.0.0.1"),
        ("0x7f.0.0.0x1", "127.0.0.1"),
        ("0X7F000001", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("127.0x0", "127.0.0.0"),
        ("１２７.０.０.１", "127.0.0.1"),
        ("①②⑦.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("::1", "[::1]"),
        ("[0:0:0:0:0:0:0:1]", "[::1]"),
        ("[::FFFF:169.254.169.254]", "169.254.169.254"),
        ("[::ffff:a9fe:a9fe]", "169.254.169.254"),
        ("[64:ff9b::7f00:1]", "[64:ff9b::7f00:1]"),
    ] {
        assert_eq!(canonical(raw).as_deref(), Some(expected), "{raw:?}");
    }
}

/// S-01, C-01: what two readers could read differently is no host.
#[test]
fn what_has_two_readings_is_refused() {
    for raw in [
        "",
        ".",
        "..",
        "a..test",
        ".good.test",
        "good.test..",
        "good%2etest",
        "%67ood.test",
        "good.test%00.evil.test",
        "good.test\0",
        "good.test\n",
        "good.test ",
        " good.test",
        "good.test/",
        "good.test\\evil.test",
        "user@good.test",
        "good.test#x",
        "good.test?x",
        "good\ttest",
        "a*b.test",
        "*.good.test",
        "-a.test",
        "a-.test",
        "a\u{2100}b.test",
        "good.test:443",
        "1.2.3.4.5",
        "256.1.1.1",
        "1.2.3.256",
        "0x100000000",
        "4294967296",
        "08.1.1.1",
        "1..2",
        "a.0x",
        "a.1",
        "1.2.3.4a.5",
        "[::1",
        "::1]",
        "[fe80::1%25eth0]",
        "fe80::1%eth0",
        "[::1%lo]",
        "[]",
        "[1.2.3.4]",
        "xn--a.test",
        "xn--.test",
        "[::ffff:999.1.1.1]",
    ] {
        assert_eq!(canonical(raw), None, "{raw:?}");
    }
    assert_eq!(canonical(&format!("{}.test", "a".repeat(64))), None);
    assert_eq!(canonical(&"a.".repeat(127)).map(|name| name.len()), Some(253));
    assert_eq!(canonical(&"a.".repeat(128)), None);
}

/// W-02: label by label, never as text.
#[test]
fn below_means_whole_labels() {
    let name = |raw: &str| raw.parse::<Name>().unwrap();
    let good = name("good.test");
    for below in ["a.good.test", "a.b.GOOD.test."] {
        assert!(name(below).is_below(&good), "{below}");
    }
    for other in ["good.test", "evil-good.test", "xgood.test", "good.test.evil.test", "good.testx"]
    {
        assert!(!name(other).is_below(&good), "{other}");
    }
}

#[test]
fn an_authority_is_a_host_and_perhaps_a_port() {
    for (raw, expected) in [
        ("Good.test:443", Some("good.test:443")),
        ("good.test", Some("good.test")),
        ("[::1]:8080", Some("[::1]:8080")),
        ("[::1]", Some("[::1]")),
        ("127.1:1", Some("127.0.0.1:1")),
        ("good.test:", None),
        ("good.test:0", None),
        ("good.test:+1", None),
        ("good.test:65536", None),
        ("good.test:000443", None),
        ("good.test:443:443", None),
        ("good.test:443@evil.test", None),
        ("::1:443", None),
        ("[::1]x:443", None),
        ("[::1]]:443", None),
    ] {
        let read = raw.parse::<Authority>().ok().map(|authority| authority.to_string());
        assert_eq!(read.as_deref(), expected, "{raw:?}");
    }
}

proptest! {
    /// The canonical form of a canonical form is itself.
    #[test]
    fn reading_the_form_gives_the_form(raw in "(\\PC|[.:a-zA-Z0-9%x\\[\\]-]){0,60}") {
        if let Some(once) = canonical(&raw) {
            prop_assert_eq!(canonical(&once), Some(once.clone()));
            prop_assert!(once.is_ascii());
        }
    }

    /// Every address, in decimal, octal, hexadecimal and with fewer parts.
    #[test]
    fn an_ipv4_address_is_itself_in_every_notation(value: u32) {
        let [a, b, c, d] = value.to_be_bytes();
        let expected = Some(Ipv4Addr::from(value).to_string());
        let rest = value & 0x00ff_ffff;
        for raw in [
            format!("{value}"),
            format!("{value:#x}"),
            format!("0{value:o}"),
            format!("{a}.{b}.{c}.{d}"),
            format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
            format!("{a:#x}.{b:#X}.{c:#x}.{d}").replace("0X", "0x"),
            format!("{a}.{rest}"),
            format!("{a}.{b}.{}", value & 0xffff),
            format!("[::ffff:{a}.{b}.{c}.{d}]"),
        ] {
            prop_assert_eq!(canonical(&raw), expected.clone(), "{}", raw);
        }
    }

    /// S-02: a second parser of URLs, written by others, reads every host that
    /// passes as the same host.
    #[test]
    fn another_parser_reads_the_same_host(
        raw in "([a-zA-Z0-9.\\-_%:\\[\\]/@?#\\\\ ]|0x|127|\\.|xn--|\\PC){1,40}",
    ) {
        let Ok(host) = raw.parse::<Host>() else { return Ok(()) };
        let bracketed = match raw.contains(':') && !raw.starts_with('[') {
            true => format!("[{raw}]"),
            false => raw.clone(),
        };
        let read = url::Url::parse(&format!("http://{bracketed}/")).expect("it accepts it too");
        match (&host, read.host().expect("an address with a host")) {
            (Host::Name(name), url::Host::Domain(theirs)) => {
                prop_assert_eq!(name.as_str(), theirs.strip_suffix('.').unwrap_or(theirs));
            }
            (Host::Address(ours), url::Host::Ipv4(theirs)) => {
                prop_assert_eq!(ours.get(), IpAddr::from(theirs));
            }
            (Host::Address(ours), url::Host::Ipv6(theirs)) => {
                prop_assert_eq!(ours.get(), IpAddr::from(theirs).to_canonical());
            }
            (ours, theirs) => prop_assert!(false, "{ours:?} and {theirs:?}"),
        }
        prop_assert_eq!(read.path(), "/");
        prop_assert_eq!(read.username(), "");
    }
}
