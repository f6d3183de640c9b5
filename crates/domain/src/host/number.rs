//! IPv4 addresses in every way that they are written: four, three, two or one
//! numbers, each decimal, octal or hexadecimal, as the URL standard reads them.

use std::net::Ipv4Addr;

/// Whether the last label is a number of any size, so that the host is an
/// address or nothing. The name is in lower case.
pub(super) fn ends_in_one(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    match last.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Reads an address.
pub(super) fn address(name: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = name.split('.').map(value).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) {
        return None;
    }
    // The last number fills the bytes that are left.
    let left = 4 - first.len();
    if *last >= 1 << (8 * left) {
        return None;
    }
    let high =
        first.iter().enumerate().fold(0, |sum, (index, part)| sum | part << (24 - 8 * index));
    u32::try_from(high | last).ok().map(Ipv4Addr::from)
}

/// One number; none where it is none, or larger than any address.
fn value(part: &str) -> Option<u64> {
    let (digits, radix) = match part.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if part.len() > 1 && part.starts_with('0') => (&part[1..], 8),
        None => (part, 10),
    };
    // "0x" alone is zero. A sign, which the library would read, is no digit.
    if digits.is_empty() {
        return (radix != 10).then_some(0);
    }
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok().filter(|value| *value <= u64::from(u32::MAX))
}
