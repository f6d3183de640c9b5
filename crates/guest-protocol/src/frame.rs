//! Frames over a pipe that has no connections of its own.
//!
//! A virtio-serial port keeps bytes across a reconnect of the host: what an
//! earlier host left half-sent arrives in front of what the next one says. So
//! every frame carries the epoch of its session and a checksum of its header,
//! and a reader that has lost its place looks for the next header that checks.
//!
//! ```text
//! "CF" | kind u8 | 0 | epoch u32 | length u32 | crc32 of the 12 bytes before | payload
//! ```
//!
//! Numbers are little-endian. The payload has no checksum: a pipe between two
//! processes of one host loses bytes, it does not alter them.

/// Bytes of a header.
pub const HEADER: usize = 16;
/// How every header begins.
pub const MAGIC: [u8; 2] = *b"CF";
/// The most payload of one frame. Small, because a new host sends this many
/// zeros first, to push any half-sent frame to its end.
pub const MAX_PAYLOAD: usize = 16 * 1024;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Host to guest: a new session.
    Hello,
    /// Guest to host: it has begun.
    HelloAck,
    /// Bytes of the session.
    Data,
}

/// A header that checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The session it belongs to.
    pub epoch: u32,
    /// Bytes of payload, at most [`MAX_PAYLOAD`].
    pub length: usize,
}

impl Header {
    /// The bytes on the wire. `length` is at most [`MAX_PAYLOAD`].
    pub fn encode(self) -> [u8; HEADER] {
        let kind = match self.kind {
            Kind::Hello => 1,
            Kind::HelloAck => 2,
            Kind::Data => 3,
        };
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = kind;
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.length as u32).to_le_bytes());
        let crc = crc32fast::hash(&bytes[..12]);
        bytes[12..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header, or nothing if these bytes are not one.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        if bytes[..2] != MAGIC || bytes[3] != 0 {
            return None;
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if word(12) != crc32fast::hash(&bytes[..12]) {
            return None;
        }
        let kind = match bytes[2] {
            1 => Kind::Hello,
            2 => Kind::HelloAck,
            3 => Kind::Data,
            _ => return None,
        };
        let length = word(8) as usize;
        (length <= MAX_PAYLOAD).then_some(Self { kind, epoch: word(4), length })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_reads_back_as_itself(epoch: u32, length in 0..=MAX_PAYLOAD, kind in 0..3) {
            let kind = [Kind::Hello, Kind::HelloAck, Kind::Data][kind as usize];
            let header = Header { kind, epoch, length };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        /// G-01: a length above the bound is no header, whatever its checksum.
        #[test]
        fn an_oversized_length_is_no_header(length in MAX_PAYLOAD + 1..=u32::MAX as usize) {
            let bytes = Header { kind: Kind::Data, epoch: 1, length }.encode();
            prop_assert_eq!(Header::decode(&bytes), None);
        }

        #[test]
        fn one_altered_bit_is_no_header(epoch: u32, bit in 0..HEADER * 8) {
            let mut bytes = Header { kind: Kind::Data, epoch, length: 9 }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), None);
        }
    }
}
