//! The gateway against a small internet: what arrives is what counts.
//!
//! Each starting case of the security programme that this part can reach stands
//! here as the kind it belongs to, generated where it can be. Those that need
//! surfaces which do not exist yet are listed in [`cases`] and print
//! `not run: surface missing`.
#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]
#![allow(clippy::print_stdout, reason = "a test says why it did not run")]

mod addresses;
mod captured;
mod cases;
mod intercepted;
mod names;
mod proxy;
mod smuggling;

use domain::mode::EgressMode;
use gateway::{engine::Limits, rules::Rules};
use guest_protocol::egress::Front;
use testkit::lab::Lab;

/// Names that origins have certificates for.
const NAMES: [&str; 4] = ["api.good.test", "other.good2.test", "evil.test", "wide.good3.test"];

/// A lab in `restricted` with two hosts listed, or a word why there is none.
fn lab() -> Option<Lab> {
    let limits = Limits { dial: std::time::Duration::from_secs(5), ..Limits::default() };
    match Lab::start(&NAMES, limits) {
        Ok(lab) => {
            lab.set_rules(restricted);
            Some(lab)
        }
        Err(why) => {
            println!("not run: {why}");
            None
        }
    }
}

fn restricted(rules: &mut Rules) {
    rules.mode = EgressMode::Restricted;
    let entries = ["api.good.test", "other.good2.test", "http://api.good.test", "*.good3.test"];
    rules.allow = entries.iter().map(|entry| entry.parse().unwrap()).collect();
}

fn mediated(rules: &mut Rules) {
    rules.mode = EgressMode::Mediated;
}

fn open(rules: &mut Rules) {
    rules.mode = EgressMode::Open;
}

/// Asks the proxy for a tunnel and returns the head of its answer.
async fn connect(lab: &Lab, authority: &str) -> String {
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    lab.exchange(Front::Proxy, request.as_bytes()).await
}

/// The code of a refusal.
fn code(answer: &str) -> &str {
    let rest = answer.split_once("\"code\":\"").map_or("", |(_, rest)| rest);
    rest.split('"').next().unwrap_or_default()
}
