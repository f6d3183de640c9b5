//! A chunked body, as it passes.

use super::{Malformed, head::field};

/// The longest line with a size; extensions have no meaning here.
const MAX_SIZE_LINE: usize = 256;
/// All trailers together.
const MAX_TRAILERS: usize = 16 * 1024;

/// Where in a chunked body we are.
#[derive(Debug, Default)]
pub(super) enum Chunks {
    #[default]
    Size,
    Data(u64),
    /// Between the data of a chunk and the next size: so many bytes of CR LF seen.
    End(u8),
    /// So many bytes of trailers seen.
    Trailers(usize),
}

impl Chunks {
    /// How many bytes pass, and whether the body ends with them.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<(usize, bool), Malformed> {
        match self {
            Self::Size => {
                let Some(line) = line(bytes, MAX_SIZE_LINE, Malformed::Chunk)? else {
                    return Ok((0, false));
                };
                *self = match size(line)? {
                    0 => Self::Trailers(0),
                    size => Self::Data(size),
                };
                Ok((line.len() + 2, false))
            }
            Self::Data(left) => {
                let now = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= now as u64;
                if *left == 0 {
                    *self = Self::End(0);
                }
                Ok((now, false))
            }
            Self::End(seen) => {
                if bytes[0] != b"\r\n"[usize::from(*seen)] {
                    return Err(Malformed::Chunk);
                }
                *self = if *seen == 0 { Self::End(1) } else { Self::Size };
                Ok((1, false))
            }
            Self::Trailers(seen) => {
                let left = MAX_TRAILERS.saturating_sub(*seen);
                let Some(line) = line(bytes, left, Malformed::Trailer)? else {
                    return Ok((0, false));
                };
                if line.is_empty() {
                    return Ok((2, true));
                }
                trailer(line)?;
                *seen += line.len() + 2;
                Ok((line.len() + 2, false))
            }
        }
    }
}

/// The next line without its end, if it is there.
fn line(bytes: &[u8], most: usize, error: Malformed) -> Result<Option<&[u8]>, Malformed> {
    let looked = &bytes[..bytes.len().min(most)];
    match looked.iter().position(|byte| *byte == b'\n') {
        Some(at) => looked[..at].strip_suffix(b"\r").ok_or(error).map(Some),
        None if bytes.len() >= most => Err(error),
        // A CR that is followed by something else can be refused at once.
        None => match looked.iter().position(|byte| *byte == b'\r') {
            Some(at) if at + 1 < looked.len() => Err(error),
            _ => Ok(None),
        },
    }
}

/// At most 15 digits, which no reader overflows.
fn size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, rest) = line.split_at(digits);
    let extension = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ' || *byte == b'\t';
    if digits == 0
        || digits > 15
        || !(rest.is_empty() || rest[0] == b';')
        || !rest.iter().all(extension)
    {
        return Err(Malformed::Chunk);
    }
    let number = std::str::from_utf8(number).map_err(|_| Malformed::Chunk)?;
    u64::from_str_radix(number, 16).map_err(|_| Malformed::Chunk)
}

/// A field that may come after a body: none that says where something ends or
/// who asks.
fn trailer(line: &[u8]) -> Result<(), Malformed> {
    let (name, _) = field(line).map_err(|_| Malformed::Trailer)?;
    let name = name.to_ascii_lowercase();
    let head_only = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "trailer",
        "te",
        "authorization",
        "proxy-authorization",
        "cookie",
        "content-type",
        "content-encoding",
        "content-range",
        "expect",
    ];
    if head_only.contains(&name.as_str()) || name.starts_with(crate::http::fields::OWN) {
        return Err(Malformed::Trailer);
    }
    Ok(())
}
