//! Tables of every decision.

use std::net::IpAddr;

use domain::{
    id::SandboxId,
    mode::EgressMode::{self, Brokered, Mediated, Off, Open, Restricted},
};

use super::*;
use crate::{
    address::Own,
    rules::{Exception, Session, Upstream},
};

fn rules(mode: EgressMode, allow: &[&str]) -> Rules {
    let mut rules = Rules::off(SandboxId::from_random([1; 16]), 1);
    rules.mode = mode;
    rules.allow = allow.iter().map(|entry| entry.parse().unwrap()).collect();
    rules
}

fn request(kind: Kind, authority: &str) -> Request {
    let (host, port) = destination(authority, None).unwrap();
    let front = if kind == Kind::Datagrams { Front::Udp } else { Front::Proxy };
    Request { front, kind, host, port }
}

/// What comes of a request whose name has these addresses: what it may carry, or
/// the code.
fn outcome(rules: &Rules, request: &Request, answers: &[&str]) -> Result<Content, Code> {
    let permit = judge(rules, request).map_err(|refusal| refusal.code)?;
    let content = permit.content();
    let literal = request.host.address();
    let answers: Vec<IpAddr> = match literal {
        Some(address) => vec![address],
        None => answers.iter().map(|answer| answer.parse().unwrap()).collect(),
    };
    pin(permit, &answers, &Own::default()).map(|_| content).map_err(|refusal| refusal.code)
}

const MODES: [EgressMode; 5] = [Off, Brokered, Restricted, Mediated, Open];

/// U3, U4, U21, U26, S15-S24, W67, W68: mode by kind by destination by port by
/// list, each cell said by hand.
#[test]
fn the_table_of_modes_holds() {
    use Code::{DestinationBlocked as Blocked, ModeDenied as Mode, PolicyDenied as Policy};
    use Content::{Anything as Any, Http as H, Tls as T, Unchecked as U};
    use Kind::{Datagrams, Http, Tunnel};
    let list = ["good.test", "*.wide.test:8443", "http://plain.test", "8.8.8.8", "10.0.0.1"];
    #[rustfmt::skip]
    let table = [
        // kind, destination, restricted, mediated, open
        (Tunnel, "good.test:443", Ok(T), Ok(Any), Ok(U)),
        (Tunnel, "good.test:22", Err(Policy), Ok(Any), Ok(U)),
        (Tunnel, "good.test:80", Err(Policy), Ok(Any), Ok(U)),
        (Http, "good.test:80", Err(Policy), Ok(H), Ok(H)),
        (Http, "good.test:443", Err(Policy), Ok(H), Ok(H)),
        (Tunnel, "a.wide.test:8443", Ok(T), Ok(Any), Ok(U)),
        (Tunnel, "wide.test:8443", Err(Policy), Ok(Any), Ok(U)),
        (Tunnel, "a.wide.test:443", Err(Policy), Ok(Any), Ok(U)),
        (Http, "plain.test:80", Ok(H), Ok(H), Ok(H)),
        (Tunnel, "plain.test:80", Ok(H), Ok(Any), Ok(U)),
        (Tunnel, "plain.test:443", Err(Policy), Ok(Any), Ok(U)),
        (Tunnel, "evil.test:443", Err(Policy), Ok(Any), Ok(U)),
        (Tunnel, "evil-good.test:443", Err(Policy), Ok(Any), Ok(U)),
        (Tunnel, "8.8.8.8:443", Ok(T), Ok(Any), Ok(U)),
        (Tunnel, "9.9.9.9:443", Err(Policy), Ok(Any), Ok(U)),
        (Tunnel, "10.0.0.1:443", Err(Blocked), Err(Blocked), Err(Blocked)),
        (Tunnel, "127.1:443", Err(Policy), Err(Blocked), Err(Blocked)),
        (Tunnel, "[::ffff:169.254.169.254]:80", Err(Policy), Err(Blocked), Err(Blocked)),
        (Http, "169.254.169.254:80", Err(Policy), Err(Blocked), Err(Blocked)),
        (Tunnel, "localhost:443", Err(Policy), Err(Blocked), Err(Blocked)),
        (Tunnel, "x.localhost:443", Err(Policy), Err(Blocked), Err(Blocked)),
        (Datagrams, "9.9.9.9:53", Err(Mode), Err(Mode), Ok(U)),
        (Datagrams, "8.8.8.8:443", Err(Mode), Err(Mode), Ok(U)),
        (Datagrams, "10.0.0.1:53", Err(Mode), Err(Mode), Err(Blocked)),
    ];
    for (kind, to, restricted, mediated, open) in table {
        let expected = [Err(Mode), Err(Mode), restricted, mediated, open];
        for front in [Front::Proxy, Front::Captured] {
            let request = Request { front, ..request(kind, to) };
            for (mode, expected) in MODES.into_iter().zip(expected) {
                let given = outcome(&rules(mode, &list), &request, &["93.184.216.34"]);
                assert_eq!(given, expected, "{mode:?} {kind:?} {to}");
            }
        }
    }
}

/// W-01: an empty list permits nothing, whatever is asked.
#[test]
fn an_empty_list_permits_nothing() {
    let rules = rules(Restricted, &[]);
    for to in ["good.test:443", "8.8.8.8:443", "localhost:80", "a:1", "[2606:4700::1]:443"] {
        for kind in [Kind::Http, Kind::Tunnel] {
            let refused = judge(&rules, &request(kind, to)).expect_err(to);
            assert_eq!(refused.code, Code::PolicyDenied);
        }
    }
}

/// U24, D-02: one internal answer refuses the name, wherever it stands.
#[test]
fn one_internal_answer_refuses_the_name() {
    let request = request(Kind::Tunnel, "multi.test:443");
    for mode in [Restricted, Mediated, Open] {
        let rules = rules(mode, &["multi.test"]);
        for answers in [
            &["9.9.9.9", "127.0.0.1"][..],
            &["127.0.0.1", "9.9.9.9"],
            &["9.9.9.9", "2606:4700::1", "::ffff:10.0.0.1"],
            &["64:ff9b::7f00:1"],
            &["9.9.9.9", "::1"],
        ] {
            let refused = outcome(&rules, &request, answers);
            assert_eq!(refused, Err(Code::DestinationBlocked), "{mode:?} {answers:?}");
        }
        assert!(outcome(&rules, &request, &["9.9.9.9", "2606:4700::1"]).is_ok());
        assert_eq!(outcome(&rules, &request, &[]), Err(Code::Unresolvable));
    }
}

/// U24, W156: the operator's exception is for exactly one host and port, and in
/// `restricted` it does not stand in for the list.
#[test]
fn an_exception_is_exact() {
    let exception = |raw: &str| {
        let (host, port) = destination(raw, None).unwrap();
        Exception { host, port }
    };
    for mode in [Mediated, Open] {
        let mut rules = rules(mode, &[]);
        rules.exceptions = vec![exception("db.test:5432"), exception("10.0.0.1:80")];
        for (to, expected) in [
            ("db.test:5432", true),
            ("db.test:5433", false),
            ("a.db.test:5432", false),
            ("10.0.0.9:5432", false),
            ("10.0.0.1:80", true),
            ("10.0.0.1:81", false),
            ("[::ffff:10.0.0.1]:80", true),
            ("other.test:80", false),
        ] {
            let request = request(Kind::Tunnel, to);
            assert_eq!(outcome(&rules, &request, &["10.0.0.9"]).is_ok(), expected, "{to}");
        }
    }
    let mut restricted = rules(Restricted, &[]);
    restricted.exceptions = vec![exception("db.test:443")];
    let request = request(Kind::Tunnel, "db.test:443");
    assert_eq!(outcome(&restricted, &request, &["10.0.0.9"]), Err(Code::PolicyDenied));
    restricted.allow = vec!["db.test".parse().unwrap()];
    assert!(outcome(&restricted, &request, &["10.0.0.9"]).is_ok());
}

/// W28, W29, U33: the account names the session.
#[test]
fn an_account_is_its_session_or_nobody() {
    let session =
        |uid, byte, attended| Session { uid, id: SessionId::from_random([byte; 16]), attended };
    let (a, b) = (session(2000, 1, true), session(2001, 2, false));
    let none = Ok(None);
    let unidentified = Err(Code::UnidentifiedSandbox);
    for (sessions, others, uid, expected) in [
        (vec![], Others::Sandbox, Some(1000), none.clone()),
        (vec![], Others::Sandbox, None, none.clone()),
        (vec![], Others::Nobody, Some(1000), unidentified.clone()),
        (vec![], Others::Nobody, None, unidentified.clone()),
        (vec![a.clone(), b.clone()], Others::Sandbox, Some(2000), Ok(Some(a.id.clone()))),
        (vec![a.clone(), b.clone()], Others::Sandbox, Some(2001), Ok(Some(b.id.clone()))),
        (vec![a.clone(), b.clone()], Others::Sandbox, Some(1000), none),
        (vec![a.clone(), b.clone()], Others::Sandbox, None, unidentified.clone()),
        (vec![a.clone(), b], Others::Nobody, Some(1000), unidentified),
        (vec![a.clone()], Others::Nobody, Some(2000), Ok(Some(a.id))),
    ] {
        let mut rules = rules(Restricted, &[]);
        (rules.sessions, rules.others) = (sessions, others);
        let found = identify(&rules, uid);
        let found = found.map(|client| client.session).map_err(|refusal| refusal.code);
        assert_eq!(found, expected, "{rules:?} {uid:?}");
    }
}

/// L46, U6, U21: named paths in every mode but `off`, to what is configured.
#[test]
fn named_paths_lead_to_what_the_operator_named() {
    for mode in MODES {
        let mut rules = rules(mode, &[]);
        rules.upstreams.push(Upstream {
            name: "model".to_owned(),
            scheme: domain::allow::Scheme::Http,
            host: "10.0.0.5".parse().unwrap(),
            port: 8000,
            base: String::new(),
        });
        let code = |name| judge_named(&rules, name).map(|_| ()).map_err(|refusal| refusal.code);
        match mode {
            Off => assert_eq!(code("model"), Err(Code::ModeDenied)),
            _ => assert_eq!(code("model"), Ok(())),
        }
        for other in ["", "Model", "models", "http:", "good.test"] {
            assert!(code(other).is_err(), "{other:?}");
        }
    }
}

/// U5, K25, S18, S22, N-02: what the resolver does in each mode.
#[test]
fn the_table_of_lookups_holds() {
    use Lookup::{Forward, NoSuchName, Synthetic};
    let list = ["good.test:8443", "*.wide.test", "http://plain.test"];
    for (name, address, restricted, mediated, open) in [
        ("good.test", true, Synthetic, Synthetic, Forward),
        ("good.test", false, NoSuchName, Forward, Forward),
        ("plain.test", true, Synthetic, Synthetic, Forward),
        ("a.b.wide.test", true, Synthetic, Synthetic, Forward),
        ("wide.test", true, NoSuchName, Synthetic, Forward),
        ("secret.x.evil.test", true, NoSuchName, Synthetic, Forward),
        ("secret.x.evil.test", false, NoSuchName, Forward, Forward),
        ("localhost", true, NoSuchName, NoSuchName, NoSuchName),
        ("a.localhost", false, NoSuchName, NoSuchName, NoSuchName),
    ] {
        let expected = [None, None, Some(restricted), Some(mediated), Some(open)];
        for (mode, expected) in MODES.into_iter().zip(expected) {
            let given = judge_lookup(&rules(mode, &list), &name.parse().unwrap(), address).ok();
            assert_eq!(given, expected, "{mode:?} {name} {address}");
        }
    }
}

/// W-02, S-01: destinations are read once; what has two readings has none.
#[test]
fn a_destination_has_one_reading() {
    assert!(destination("GOOD.test.:443", None).is_ok());
    assert!(destination("good.test", Some(443)).is_ok());
    for raw in ["good.test", "good.test:0", "user@good.test:443", "good.test%2e:443", "a b:1", ""] {
        let refused = destination(raw, None).expect_err(raw);
        assert_eq!(refused.code, Code::InvalidDestination);
    }
}

/// A change of the rules reaches connections that exist.
#[test]
fn a_connection_is_held_to_newer_rules() {
    let request = request(Kind::Tunnel, "good.test:443");
    let own = Own::default();
    let public = ["93.184.216.34".parse().unwrap()];
    let pinned = pin(judge(&rules(Restricted, &["good.test"]), &request).unwrap(), &public, &own);
    let pinned = pinned.unwrap();
    assert!(recheck(&rules(Restricted, &["other.test", "good.test"]), &pinned, &own).is_ok());
    for (mode, allow) in [
        (Restricted, &["other.test"][..]),
        (Restricted, &[]),
        (Restricted, &["http://good.test:443"]),
        (Brokered, &["good.test"]),
        (Off, &["good.test"]),
    ] {
        assert!(recheck(&rules(mode, allow), &pinned, &own).is_err(), "{mode:?} {allow:?}");
    }
    // What was let through as an exception is not, once there is none.
    let mut excepting = rules(Mediated, &[]);
    excepting.exceptions = vec![Exception { host: request.host.clone(), port: 443 }];
    let internal = ["10.0.0.1".parse().unwrap()];
    let pinned = pin(judge(&excepting, &request).unwrap(), &internal, &own).unwrap();
    assert!(recheck(&excepting, &pinned, &own).is_ok());
    assert!(recheck(&rules(Mediated, &[]), &pinned, &own).is_err());
}

/// The explanation is the decision: same rule, same code, for every mode.
#[test]
fn an_explanation_says_what_is_decided() {
    let list = ["good.test", "http://plain.test:8080", "10.0.0.1"];
    for mode in MODES {
        let rules = rules(mode, &list);
        for (url, kind, authority) in [
            ("https://Good.test/x?y", Kind::Tunnel, "good.test:443"),
            ("good.test", Kind::Tunnel, "good.test:443"),
            ("http://plain.test:8080/", Kind::Http, "plain.test:8080"),
            ("http://good.test", Kind::Http, "good.test:80"),
            ("https://10.0.0.1", Kind::Tunnel, "10.0.0.1:443"),
            ("https://0x8080808", Kind::Tunnel, "8.8.8.8:443"),
        ] {
            let told = explain(&rules, Some(1000), url, &Own::default());
            let decided = outcome(&rules, &request(kind, authority), &["9.9.9.9"]);
            assert_eq!(told.destination.as_deref(), Some(authority), "{url}");
            assert_eq!(told.refusal.map(|refusal| refusal.code), decided.err(), "{mode:?} {url}");
            assert!(told.steps.len() >= 3, "{:?}", told.steps);
        }
    }
    let told = explain(&rules(Open, &[]), Some(1), "ftp://good.test", &Own::default());
    assert_eq!(told.refusal.map(|refusal| refusal.code), Some(Code::InvalidDestination));
}

/// Rules cross a process boundary as bytes.
#[test]
fn rules_read_back_as_themselves() {
    let mut rules = rules(Restricted, &["good.test", "*.wide.test:8443", "http://[2606:4700::1]"]);
    rules.exceptions = vec![Exception { host: "db.test".parse().unwrap(), port: 5432 }];
    let bytes = postcard::to_allocvec(&rules).unwrap();
    assert_eq!(postcard::from_bytes::<Rules>(&bytes).unwrap(), rules);
}
