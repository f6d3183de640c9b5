//! One head, whole.

use super::{Body, Malformed};

/// The largest head.
pub const MAX_HEAD: usize = 64 * 1024;
/// The most fields in one.
pub const MAX_HEADERS: usize = 100;

/// What a head says about what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a str,
    /// The target as written.
    pub target: &'a str,
    /// The host as written; only CONNECT and HTTP/1.0 may lack it.
    pub host: Option<&'a str>,
    /// How its body ends.
    pub body: Body,
}

/// Headers that `Connection` must not name: removing them changes the request.
const NOT_HOP: [&str; 9] = [
    "host",
    "content-length",
    "content-type",
    "authorization",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "x-forwarded-for",
];

/// Where the head ends, if it does; `searched` bytes are known not to end it.
pub(super) fn end(bytes: &[u8], searched: usize) -> Result<Option<usize>, Malformed> {
    let from = searched.saturating_sub(3);
    for (at, &byte) in bytes.iter().enumerate().skip(from) {
        if at >= MAX_HEAD {
            return Err(Malformed::Large);
        }
        match byte {
            b'\n' if at == 0 || bytes[at - 1] != b'\r' => return Err(Malformed::Line),
            b'\n' if at == 1 => return Err(Malformed::Request),
            b'\n' if bytes[at - 1] == b'\r' && bytes[at - 2] == b'\n' => return Ok(Some(at + 1)),
            0 => return Err(Malformed::Line),
            _ => {}
        }
    }
    Ok(None)
}

/// Reads a head, its empty line included.
///
/// # Errors
/// What about it has more than one reading.
pub fn head(bytes: &[u8]) -> Result<Head<'_>, Malformed> {
    let lines = bytes.strip_suffix(b"\r\n\r\n").ok_or(Malformed::Line)?;
    let mut lines =
        lines.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (method, target, minor) = request_line(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for line in lines {
        fields.count += 1;
        if fields.count > MAX_HEADERS {
            return Err(Malformed::Large);
        }
        let (name, value) = field(line)?;
        fields.add(name, value)?;
    }
    let connect = method == "CONNECT";
    if fields.host.is_none() && minor == 1 && !connect {
        return Err(Malformed::Host);
    }
    if fields.chunked && (fields.length.is_some() || minor == 0) {
        return Err(Malformed::Coding);
    }
    let has_body = fields.chunked || fields.length.unwrap_or(0) > 0;
    if (connect || fields.upgrade) && has_body {
        return Err(Malformed::Upgrade);
    }
    let body = match (connect || fields.upgrade, fields.chunked) {
        (true, _) => Body::Raw,
        (false, true) => Body::Chunked,
        (false, false) => Body::Length(fields.length.unwrap_or(0)),
    };
    Ok(Head { method, target, host: fields.host, body })
}

fn request_line(line: &[u8]) -> Result<(&str, &str, u8), Malformed> {
    let line = std::str::from_utf8(line).map_err(|_| Malformed::Request)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Malformed::Request);
    };
    let minor = match version {
        "HTTP/1.1" => 1,
        "HTTP/1.0" => 0,
        _ => return Err(Malformed::Request),
    };
    let visible = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    // A fragment is never sent; whoever reads it cuts the path there.
    if method.len() > 32
        || !method.bytes().all(is_token)
        || !visible(target)
        || method.is_empty()
        || target.contains('#')
    {
        return Err(Malformed::Request);
    }
    // Another spelling of CONNECT would be a tunnel for one reader only.
    if method != "CONNECT" && method.eq_ignore_ascii_case("CONNECT") {
        return Err(Malformed::Request);
    }
    Ok((method, target, minor))
}

/// Reads a field line of a head or a trailer.
pub(super) fn field(line: &[u8]) -> Result<(&str, &str), Malformed> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Malformed::Field)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(Malformed::Field);
    }
    if value.iter().any(|byte| (byte.is_ascii_control() && *byte != b'\t') || *byte == 0x7f) {
        return Err(Malformed::Line);
    }
    let name = std::str::from_utf8(name).map_err(|_| Malformed::Field)?;
    // Bytes beyond ASCII may stand in values that nobody here reads.
    let value = std::str::from_utf8(value).unwrap_or("\u{fffd}");
    Ok((name, value.trim_matches([' ', '\t'])))
}

#[derive(Default)]
struct Fields<'a> {
    count: usize,
    host: Option<&'a str>,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

impl<'a> Fields<'a> {
    fn add(&mut self, name: &str, value: &'a str) -> Result<(), Malformed> {
        match name.to_ascii_lowercase().as_str() {
            "host" if self.host.is_some() || value.is_empty() => return Err(Malformed::Host),
            "host" => self.host = Some(value),
            "content-length" if self.length.is_some() => return Err(Malformed::Length),
            "content-length" => self.length = Some(length(value)?),
            "transfer-encoding" if self.chunked || !value.eq_ignore_ascii_case("chunked") => {
                return Err(Malformed::Coding);
            }
            "transfer-encoding" => self.chunked = true,
            "upgrade" => self.upgrade = true,
            "expect" if !value.eq_ignore_ascii_case("100-continue") => {
                return Err(Malformed::Expect);
            }
            "connection" => {
                let named = value.split(',').map(|word| word.trim_matches([' ', '\t']));
                if named
                    .into_iter()
                    .any(|word| NOT_HOP.contains(&word.to_ascii_lowercase().as_str()))
                {
                    return Err(Malformed::Connection);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Digits alone: no sign, no list, nothing that overflows.
fn length(value: &str) -> Result<u64, Malformed> {
    if value.is_empty() || value.len() > 18 || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Malformed::Length);
    }
    value.parse().map_err(|_| Malformed::Length)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
