//! Every special range in every spelling.

use domain::host::Host;

use super::*;

/// The first, the last and one in the middle of a range.
fn samples_v4() -> Vec<Ipv4Addr> {
    let samples = |(network, length, _): &(Ipv4Addr, u32, &str)| {
        let size = 1_u64 << (32 - length);
        let first = u64::from(u32::from(*network));
        [0, 1, size / 5, size / 3, size / 2, size / 4 * 3, size.saturating_sub(2), size - 1]
            .map(|offset| Ipv4Addr::from((first + offset.min(size - 1)) as u32))
    };
    V4.iter().flat_map(samples).collect()
}

/// Every way in which an IPv4 address is written.
fn spellings_v4(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let value = u32::from(address);
    let full_width = |text: &str| {
        let wide = |c: char| match c {
            '0'..='9' => char::from_u32(c as u32 - '0' as u32 + 0xff10).unwrap(),
            '.' => '\u{3002}',
            other => other,
        };
        text.chars().map(wide).collect::<String>()
    };
    let high = format!("{:x}:{:x}", value >> 16, value & 0xffff);
    let inverted = format!("{:x}:{:x}", !value >> 16, !value & 0xffff);
    let mut all = vec![
        format!("{address}"),
        format!("{address}."),
        format!("{value}"),
        format!("{value:#x}"),
        format!("0X{value:X}"),
        format!("0{value:o}"),
        format!("000{value:o}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("{a:#04x}.{b}.0{c:o}.{d}"),
        format!("{a}.{}", value & 0x00ff_ffff),
        format!("{a}.{b}.{}", value & 0xffff),
        format!("{a}.{:#x}", value & 0x00ff_ffff),
        full_width(&address.to_string()),
        full_width(&format!("{value}")),
    ];
    for prefix in ["::ffff:", "0:0:0:0:0:FFFF:", "::", "::ffff:0:", "64:ff9b::", "64:ff9b:1::"] {
        all.push(format!("[{prefix}{address}]"));
        all.push(format!("[{prefix}{high}]"));
        all.push(format!("{prefix}{high}"));
    }
    all.push(format!("[2002:{high}::1]"));
    all.push(format!("[2002:{high}:0:0:0:0:8.8.8.8]"));
    all.push(format!("[2001:0:808:808:0:0:{inverted}]"));
    all
}

fn samples_v6() -> Vec<Ipv6Addr> {
    let samples = |(network, length, ..): &(Ipv6Addr, u32, &str, Inner)| {
        let rest = if *length == 128 { 0 } else { u128::MAX >> length };
        let first = u128::from(*network);
        [0, 1, rest / 5, rest / 3, rest / 2, rest]
            .map(|offset| Ipv6Addr::from(first + offset.min(rest)))
    };
    // Not among them: a translated public address, which is one.
    let table = V6.iter().filter(|(_, _, range, _)| *range != NAT64);
    let mut all: Vec<_> = table.flat_map(samples).collect();
    // And what nobody has been given.
    all.extend([0x4000, 0x8000, 0xc000, 0xe000, 0xf800].map(|a| at(a, 1, 2)));
    all
}

fn spellings_v6(address: Ipv6Addr) -> Vec<String> {
    let segments = address.segments();
    let long = segments.map(|segment| format!("{segment:04X}")).join(":");
    let tail = u128::from(address) as u32;
    let head = segments[..6].iter().map(|segment| format!("{segment:x}:")).collect::<String>();
    vec![
        format!("[{address}]"),
        format!("{address}"),
        format!("[{long}]"),
        format!("[{head}{}]", Ipv4Addr::from(tail)),
    ]
}

/// S-01, S-02, TM2, W30, U25: every special range in every spelling, judged by
/// what it is and not by how it is written. A spelling may be no host at all;
/// what it may not be is a public address.
#[test]
fn no_spelling_of_a_special_address_is_public() {
    let mut spellings = Vec::new();
    for address in samples_v4() {
        spellings.extend(spellings_v4(address));
    }
    for address in samples_v6() {
        spellings.extend(spellings_v6(address));
    }
    for text in ["0", "0.0", "0x0", "[::]", "127.1", "0177.1", "[::ffff:0:0]"] {
        spellings.push(text.to_owned());
    }
    assert!(spellings.len() >= 5_000, "{}", spellings.len());
    let mut judged = 0;
    for spelling in &spellings {
        let Ok(host) = spelling.parse::<Host>() else { continue };
        let address = host.address().unwrap_or_else(|| panic!("{spelling} became a name"));
        assert!(judge(address, &Own::default()).is_err(), "{spelling} is public");
        judged += 1;
    }
    // Refusing everything unread would prove nothing.
    assert!(judged * 100 > spellings.len() * 95, "{judged} of {}", spellings.len());
}

/// W156: and what is public stays reachable.
#[test]
fn public_addresses_are_public() {
    for address in [
        "8.8.8.8",
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2001:4860:4860::8888",
        "2606:4700::1111",
        "2a00::1",
        "2001:200::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(judge(address, &Own::default()), Ok(()), "{address}");
    }
}

/// U25
#[test]
fn what_is_inside_is_named() {
    let told = |address: &str| {
        let own = Own::new(["8.8.4.4".parse().unwrap()]);
        judge(address.parse().unwrap(), &own).map_err(|internal| internal.to_string())
    };
    for (address, expected) in [
        ("64:ff9b::a9fe:a9fe", "link-local 169.254.0.0/16, inside NAT64 64:ff9b::/96"),
        ("2002:7f00:1::", "loopback 127.0.0.0/8, inside 6to4 2002::/16"),
        ("2001::f5ff:fffe", "private 10.0.0.0/8, inside Teredo 2001::/32"),
        ("2002:808:808::", "6to4 2002::/16"),
        ("64:ff9b::808:404", "an address of this host, inside NAT64 64:ff9b::/96"),
        ("::ffff:8.8.4.4", "an address of this host"),
        ("8.8.4.4", "an address of this host"),
    ] {
        assert_eq!(told(address), Err(expected.to_owned()), "{address}");
    }
}
