//! Unary calls of the Connect protocol.

use bytes::Bytes;
use guest_protocol::connect::{self, Code, Decoder, Envelope, Error};
use hyper::{Response, StatusCode, body::Incoming};
use serde::{Serialize, de::DeserializeOwned};

use super::body::{self, Body};

/// Reads the one message of a unary call.
pub(crate) async fn request<T: DeserializeOwned>(incoming: Incoming) -> Result<T, Error> {
    parse(&message(incoming, connect::MAX_MESSAGE).await?)
}

/// Reads the one enveloped message that opens a server stream.
pub(crate) async fn stream_request<T: DeserializeOwned>(incoming: Incoming) -> Result<T, Error> {
    let bytes = message(incoming, connect::MAX_MESSAGE + 1024).await?;
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    match decoder.decode()? {
        Some(Envelope::Message(json)) => parse(&json),
        Some(Envelope::End(_)) | None => {
            Err(Error::new(Code::InvalidArgument, "the request holds no message"))
        }
    }
}

/// Parses the JSON of one message.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    // No body at all is an empty message to the protocol's clients.
    let json = if json.is_empty() { b"{}" } else { json };
    serde_json::from_slice(json)
        .map_err(|error| Error::new(Code::InvalidArgument, format!("unreadable message: {error}")))
}

/// Answers a unary call.
pub(crate) fn respond<T: Serialize>(outcome: Result<T, Error>) -> Response<Body> {
    let encoded = outcome.and_then(|message| {
        serde_json::to_vec(&message)
            .map_err(|error| Error::new(Code::Internal, format!("unwritable message: {error}")))
    });
    match encoded {
        Ok(bytes) if bytes.len() > connect::MAX_MESSAGE => {
            let text = format!(
                "the answer has {} bytes, more than a message may: ask for less",
                bytes.len()
            );
            fail(&Error::new(Code::ResourceExhausted, text))
        }
        Ok(bytes) => body::json(StatusCode::OK, bytes),
        Err(error) => fail(&error),
    }
}

/// Answers a unary call with an error.
pub(crate) fn fail(error: &Error) -> Response<Body> {
    let status = StatusCode::from_u16(error.code.status());
    // The protocol's codes are valid statuses, and two strings serialise.
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    body::json(status, serde_json::to_vec(error).unwrap_or_default())
}

async fn message(incoming: Incoming, limit: usize) -> Result<Bytes, Error> {
    body::read(incoming, limit).await.ok_or_else(|| {
        let text = format!(
            "the request is longer than {} MiB or broke off; pass large data in a file",
            limit >> 20
        );
        Error::new(Code::InvalidArgument, text)
    })
}
