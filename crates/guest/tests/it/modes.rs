//! What each mode has inside, as a program finds it that tries everything.

use std::collections::BTreeMap;

use guest_protocol::control::Mode;
use serde_json::{Value, json};

/// The program; it prints what became of each try.
pub(crate) const PROBE: &str = include_str!("probe.py");

/// From the least to the most.
pub(crate) const MODES: [Mode; 5] =
    [Mode::Off, Mode::Brokered, Mode::Restricted, Mode::Mediated, Mode::Open];

/// What the probe should find in a mode.
fn expected(mode: Mode) -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    let (unreachable, refused) = (json!("ENETUNREACH"), json!("ECONNREFUSED"));
    let ways = [
        "tcp4",
        "tcp6",
        "mapped",
        "refused",
        "elsewhere",
        "elsewhere6",
        "elsewhere_tcp",
        "udp4",
        "udp6",
        "raw_udp",
        "icmp",
        "icmp6",
        "broadcast",
        "multicast",
    ];
    all.extend(ways.map(|way| (way, unreachable.clone())));
    all.extend(["local", "local6"].map(|way| (way, refused.clone())));
    // Nobody listens at the resolver's address.
    let names = ["name4", "name6", "same", "unlisted", "text"];
    all.extend(names.map(|way| (way, refused.clone())));
    if mode >= Mode::Brokered {
        all.insert("named", json!("GET /model/v1 HTTP/1.1 by 0"));
    }
    if mode < Mode::Restricted {
        return all;
    }
    all.extend([
        ("proxy", json!("CONNECT example.test:443 HTTP/1.1 by 0")),
        ("tcp4", json!("hello to 93.184.216.34 443")),
        ("tcp6", json!("hello to 2001:db8::5 8443")),
        ("mapped", json!("hello to 1.2.3.4 80")),
        ("refused", json!("ECONNRESET")),
        ("unlisted", json!("rcode 3")),
        ("text", json!("rcode 3")),
    ]);
    if mode == Mode::Open {
        let datagrams = json!(["one", "two", 20000]);
        all.extend([("udp4", datagrams.clone()), ("udp6", datagrams)]);
        // The gateway of this test has no real answers.
        let names = ["same", "elsewhere", "elsewhere6", "elsewhere_tcp"];
        all.extend(names.map(|way| (way, json!("nothing"))));
        all.insert("same", json!(true));
        all.remove("name4");
        all.remove("name6");
    } else {
        let first = json!("198.18.0.1");
        all.extend(["elsewhere", "elsewhere6", "elsewhere_tcp"].map(|way| (way, first.clone())));
        all.extend([
            ("name4", json!("hello to good.test 443")),
            ("name6", json!("hello to good.test 444")),
            ("same", json!(true)),
        ]);
    }
    all
}

/// Compares what the probe has found, run by root, with what the mode has.
#[track_caller]
pub(crate) fn compare(mode: Mode, found: &Value) {
    for (way, outcome) in expected(mode) {
        assert_eq!(found[way], outcome, "{way} in {mode:?}: {found}");
    }
    for port in ["named", "proxy"] {
        if !expected(mode).contains_key(port) {
            let text = found[port].as_str().unwrap_or_default();
            assert!(text.starts_with("HTTP/1.1 403") && text.contains("mode_denied"), "{text}");
        }
    }
}
