//! The extensions of a hello that rustls has accepted.

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// A server name extension with something in it.
    pub(super) names: bool,
    /// An extension under which another hello may hide.
    pub(super) hidden: bool,
}

const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// What an earlier draft of it used.
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;

/// Walks the first handshake message in `bytes`. None where it is no hello.
pub(super) fn walk(bytes: &[u8]) -> Option<Seen> {
    let message = first_message(bytes)?;
    let mut rest = message.as_slice();
    // Version and random; session, suites, compression.
    take(&mut rest, 2 + 32)?;
    for width in [1, 2, 1] {
        let length = number(&mut rest, width)?;
        take(&mut rest, length)?;
    }
    let mut seen = Seen { names: false, hidden: false };
    if rest.is_empty() {
        return Some(seen);
    }
    let length = number(&mut rest, 2)?;
    let mut extensions = take(&mut rest, length)?;
    while !extensions.is_empty() {
        let kind = u16::try_from(number(&mut extensions, 2)?).ok()?;
        let length = number(&mut extensions, 2)?;
        let body = take(&mut extensions, length)?;
        match kind {
            SERVER_NAME => seen.names = !body.is_empty(),
            ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME => seen.hidden = true,
            _ => {}
        }
    }
    Some(seen)
}

/// The body of the first handshake message, put together from its records.
fn first_message(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        if number(&mut bytes, 1)? != usize::from(super::HANDSHAKE) {
            return None;
        }
        take(&mut bytes, 2)?;
        let length = number(&mut bytes, 2)?;
        message.extend_from_slice(take(&mut bytes, length)?);
        if let [1, a, b, c, body @ ..] = message.as_slice() {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if body.len() >= length {
                return Some(body[..length].to_vec());
            }
        }
    }
}

fn number(bytes: &mut &[u8], width: usize) -> Option<usize> {
    Some(take(bytes, width)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}
