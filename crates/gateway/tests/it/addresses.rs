//! S: every spelling of every address that is not public.

use std::net::{Ipv4Addr, Ipv6Addr};

use guest_protocol::egress::{Destination, Front};
use testkit::lab::INTERNAL;

use super::*;

/// One address of each special range, and the canaries.
fn internal() -> Vec<Ipv4Addr> {
    let ranges = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [10, 0, 0, 1],
        [100, 64, 0, 1],
        [100, 127, 255, 255],
        [127, 0, 0, 1],
        [127, 9, 9, 9],
        [169, 254, 169, 254],
        [169, 254, 0, 1],
        [172, 16, 0, 1],
        [172, 31, 255, 255],
        [192, 0, 0, 1],
        [192, 0, 2, 1],
        [192, 88, 99, 1],
        [192, 168, 0, 1],
        [198, 18, 0, 1],
        [198, 19, 255, 255],
        [198, 51, 100, 1],
        [203, 0, 113, 1],
        [224, 0, 0, 1],
        [239, 255, 255, 250],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [172, 31, 255, 1],
    ];
    ranges.map(Ipv4Addr::from).into_iter().chain(INTERNAL).collect()
}

/// Ways to write an IPv4 address that some parser takes for it.
fn spellings(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let number = u32::from(address);
    let mapped = address.to_ipv6_mapped();
    let compatible = Ipv6Addr::from(u128::from(number));
    let (high, low) = (number >> 16, number & 0xffff);
    let wide = |text: &str| -> String {
        text.chars()
            .map(|c| {
                if c.is_ascii_digit() {
                    char::from_u32(c as u32 - 0x30 + 0xff10).unwrap()
                } else {
                    c
                }
            })
            .collect()
    };
    vec![
        address.to_string(),
        format!("{address}."),
        number.to_string(),
        format!("{number:#x}"),
        format!("{number:#X}").replace("0X", "0x"),
        format!("0{number:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("00000{a:o}.{b}.{c}.{d}"),
        format!("{a}.{}", number & 0x00ff_ffff),
        format!("{a}.{b}.{low}"),
        format!("{a:#x}.{b}.{low:#x}"),
        wide(&address.to_string()),
        address.to_string().replace('.', "\u{3002}"),
        format!("[{mapped}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[0:0:0:0:0:ffff:{high:x}:{low:x}]"),
        format!("[{compatible}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[64:ff9b:1::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001:0:0:0:0:0:{:x}:{:x}]", !high & 0xffff, !low & 0xffff),
    ]
}

/// Every front as it carries a host.
fn requests(host: &str) -> Vec<(Front, String)> {
    let mut all = vec![
        (Front::Proxy, format!("CONNECT {host}:80 HTTP/1.1\r\nHost: {host}:80\r\n\r\n")),
        (
            Front::Proxy,
            format!(
                "GET http://{host}/latest/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            ),
        ),
    ];
    let name = host.trim_matches(['[', ']']).to_owned();
    let named = Destination::Name { name, port: 80 };
    all.push((Front::Captured(named), String::new()));
    all
}

/// S-01, S-02, W30, U25, TM2: in the mode that reaches most, no spelling of an
/// address that is not public is connected to; no name is looked up for one.
#[tokio::test]
async fn no_spelling_of_an_internal_address_is_reached() {
    let Some(lab) = lab() else { return };
    let mut count = 0;
    for mode in [open, mediated, restricted] {
        lab.set_rules(mode);
        for address in internal() {
            for spelling in spellings(address) {
                for (front, bytes) in requests(&spelling) {
                    let answer = lab.exchange(front, bytes.as_bytes()).await;
                    assert!(!answer.starts_with("HTTP/1.1 200"), "{spelling}: {answer}");
                    count += 1;
                }
            }
        }
    }
    for address in
        ["::", "::1", "fc00::1", "fe80::1", "ff02::1", "2001:db8::1", "100::1", "3fff::1"]
    {
        lab.set_rules(open);
        for (front, bytes) in requests(&format!("[{address}]")) {
            let answer = lab.exchange(front, bytes.as_bytes()).await;
            assert!(!answer.starts_with("HTTP/1.1 200"), "{address}: {answer}");
            count += 1;
        }
    }
    println!("{count} requests");
    assert_eq!(lab.log.canaries(), []);
    assert_eq!(lab.log.seen().len(), 0);
    assert_eq!(lab.script.questions(), Vec::<String>::new());
}
