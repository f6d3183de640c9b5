//! D, W, C-01, N-02: names, and when they are looked up.

use std::net::Ipv4Addr;

use guest_protocol::egress::Front;
use testkit::lab::{Answer, CLOSED, INTERNAL, PUBLIC};

use super::*;

/// C-01, N-02, K25, U28: what the rules refuse is refused before any lookup, so
/// a name carries nothing out.
#[tokio::test]
async fn what_is_refused_is_not_looked_up() {
    let Some(lab) = lab() else { return };
    for name in ["evil.test", "c2VjcmV0.x.evil.test", "good.test", "api.good.test.evil.test"] {
        let answer = connect(&lab, &format!("{name}:443")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(code(&answer), "policy_denied");
        let request = format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n");
        let answer = lab.exchange(Front::Proxy, request.as_bytes()).await;
        assert_eq!(code(&answer), "policy_denied");
    }
    assert_eq!(lab.script.questions(), Vec::<String>::new());
    assert_eq!(lab.log.seen().len(), 0);
    let journal = lab.journal(8);
    assert_eq!(journal.len(), 8);
    assert!(journal.iter().all(|line| line.outcome.as_str() == "policy_denied"));
}

/// W-01: nothing listed, nothing permitted; and in `off` not even that.
#[tokio::test]
async fn an_empty_list_permits_nothing() {
    let Some(lab) = lab() else { return };
    lab.set_rules(|rules| rules.allow.clear());
    assert_eq!(code(&connect(&lab, "api.good.test:443").await), "policy_denied");
    for mode in [EgressMode::Off, EgressMode::Brokered] {
        lab.set_rules(|rules| rules.mode = mode);
        assert_eq!(code(&connect(&lab, "api.good.test:443").await), "mode_denied");
    }
    assert_eq!(lab.script.questions(), Vec::<String>::new());
}

/// W-02: label by label, port and scheme included.
#[tokio::test]
async fn names_are_compared_by_label() {
    let Some(lab) = lab() else { return };
    for authority in [
        "evil-api.good.test:443",
        "xapi.good.test:443",
        "api.good.test.evil.test:443",
        "api.good.testx:443",
        "api.good.test:8443",
        "api.good.test:22",
        "good3.test:443",
        "xgood3.test:443",
        "other.good2.test:80",
    ] {
        assert_eq!(code(&connect(&lab, authority).await), "policy_denied", "{authority}");
    }
    for authority in ["api.good.test:443", "API.Good.TEST.:443", "wide.good3.test:443"] {
        let answer = connect(&lab, authority).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{authority}: {answer}");
    }
}

/// D-01: one lookup, and the address that was judged is the one that is dialled.
#[tokio::test]
async fn a_second_answer_gains_nothing() {
    let Some(lab) = lab() else { return };
    lab.set_rules(open);
    for nth in 0..50 {
        let name = format!("rb{nth}.evil.test");
        lab.script.set(&name, Answer::InTurn(vec![PUBLIC, Ipv4Addr::LOCALHOST, INTERNAL[0]]));
        drop(connect(&lab, &format!("{name}:9999")).await);
        let asked = lab.script.questions();
        let count = asked.iter().filter(|one| **one == format!("{name} A")).count();
        assert!(count <= 1, "{asked:?}");
    }
    assert!(lab.log.canaries().iter().all(|(address, _)| *address == PUBLIC));
}

/// D-02, U24: one internal answer refuses the whole name; there is no fall-back.
#[tokio::test]
async fn one_internal_answer_refuses_the_name() {
    let Some(lab) = lab() else { return };
    lab.script.set("alias.evil.test", Answer::Alias("inner.evil.test.".into()));
    lab.script.set("inner.evil.test", Answer::Addresses(vec![INTERNAL[1]]));
    for mode in [mediated, open] {
        lab.set_rules(mode);
        for internal in INTERNAL.into_iter().chain([Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED]) {
            for answers in [vec![CLOSED, internal], vec![internal, PUBLIC], vec![internal]] {
                lab.script.set("multi.evil.test", Answer::Addresses(answers));
                let answer = connect(&lab, "multi.evil.test:9999").await;
                // What was remembered of an earlier answer was judged as well.
                assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
            }
        }
        assert!(!connect(&lab, "alias.evil.test:80").await.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(lab.log.canaries(), []);
}
