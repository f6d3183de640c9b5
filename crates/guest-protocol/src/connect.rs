//! The Connect protocol, as far as the guest API needs it: JSON only.
//!
//! A unary call is a POST with a JSON body. A server stream answers 200 with
//! envelopes: a flag byte, a big-endian `u32` length, a JSON message; the last
//! one has flag 2 and holds `{}` or the error, so errors of a stream travel
//! inside a 200. Compression is never used. Source: the Connect protocol
//! reference, <https://connectrpc.com/docs/protocol>.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The largest message either side accepts, in bytes.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// Content type of a unary call.
pub const UNARY: &str = "application/json";
/// Content type of a streaming call.
pub const STREAM: &str = "application/connect+json";
/// Flag of the last envelope of a stream.
const END: u8 = 2;

/// What kind of failure a call met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the protocol's own and documented there")]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    /// The HTTP status of a unary error.
    pub fn status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
            Self::Unknown | Self::Internal | Self::DataLoss => 500,
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What a program acts on.
    pub code: Code,
    /// What a person reads.
    #[serde(default)]
    pub message: String,
}

impl Error {
    /// Makes an error.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// One envelope of a stream, decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Envelope {
    /// A message, as JSON text.
    Message(Bytes),
    /// The end of the stream, with the error that ended it, if one did.
    End(Option<Error>),
}

/// Wraps a message.
pub fn message<T: Serialize>(message: &T) -> serde_json::Result<Bytes> {
    Ok(envelope(0, &serde_json::to_vec(message)?))
}

/// Ends a stream, with an error or without.
pub fn end(error: Option<&Error>) -> Bytes {
    #[derive(Serialize)]
    struct Trailer<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a Error>,
    }
    // A code and a text cannot fail to serialise; an empty object ends it too.
    let body = serde_json::to_vec(&Trailer { error }).unwrap_or_else(|_| b"{}".to_vec());
    envelope(END, &body)
}

fn envelope(flags: u8, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + body.len());
    bytes.put_u8(flags);
    // Bodies are far below 4 GiB: our own messages are bounded by MAX_MESSAGE.
    bytes.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    bytes.put_slice(body);
    bytes.freeze()
}

/// Cuts a byte stream into envelopes.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next whole envelope, if there is one.
    ///
    /// # Errors
    /// An envelope above [`MAX_MESSAGE`] or with a flag nobody sends. The
    /// stream is unusable after that.
    pub fn decode(&mut self) -> Result<Option<Envelope>, Error> {
        if self.buffer.len() < 5 {
            return Ok(None);
        }
        let flags = self.buffer[0];
        let length =
            u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]])
                as usize;
        if length > MAX_MESSAGE {
            let text = format!("message of {length} bytes; the limit is {MAX_MESSAGE}");
            return Err(Error::new(Code::ResourceExhausted, text));
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        self.buffer.advance(5);
        let body = self.buffer.split_to(length).freeze();
        match flags {
            0 => Ok(Some(Envelope::Message(body))),
            END => {
                #[derive(Deserialize)]
                struct Trailer {
                    error: Option<Error>,
                }
                let trailer: Trailer = serde_json::from_slice(&body).map_err(|_| {
                    Error::new(Code::Internal, "the stream ended with an unreadable trailer")
                })?;
                Ok(Some(Envelope::End(trailer.error)))
            }
            _ => Err(Error::new(Code::Unimplemented, "compressed messages are not accepted")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stream_reads_back_as_itself_whatever_the_cuts() {
        let error = Error::new(Code::NotFound, "no such process");
        let mut wire = message(&serde_json::json!({"a": 1})).unwrap().to_vec();
        wire.extend_from_slice(&end(Some(&error)));
        for cut in 0..wire.len() {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in [&wire[..cut], &wire[cut..]] {
                decoder.push(part);
                while let Some(envelope) = decoder.decode().unwrap() {
                    seen.push(envelope);
                }
            }
            assert_eq!(
                seen,
                [
                    Envelope::Message(Bytes::from_static(b"{\"a\":1}")),
                    Envelope::End(Some(error.clone()))
                ]
            );
        }
    }

    #[test]
    fn codes_are_written_in_snake_case() {
        let text = serde_json::to_string(&Error::new(Code::InvalidArgument, "x")).unwrap();
        assert_eq!(text, r#"{"code":"invalid_argument","message":"x"}"#);
    }

    proptest! {
        /// G-01: no bytes make the decoder panic or buffer more than one message.
        #[test]
        fn no_bytes_panic_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.decode() {}
        }
    }
}
