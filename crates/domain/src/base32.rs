//! Lower-case base32 (RFC 4648 alphabet, no padding) for ids and tokens.
//!
//! Letters and the digits 2 to 7 survive hostnames, file names, shells and
//! being read aloud. Only encoding and a strict alphabet check are here: ids
//! are compared as text and never decoded back to bytes.

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Encodes `bytes`; 16 bytes give 26 characters, 32 give 52.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity((bytes.len() * 8).div_ceil(5));
    let mut buffer: u32 = 0;
    let mut bits = 0;
    for &byte in bytes {
        buffer = (buffer << 8) | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(buffer >> bits) as usize & 31]));
        }
        // Only the bits that are still to be written may stay.
        buffer &= (1 << bits) - 1;
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(buffer << (5 - bits)) as usize & 31]));
    }
    text
}

/// Whether every character of `text` belongs to the alphabet.
pub fn is_encoded(text: &str) -> bool {
    text.bytes().all(|byte| ALPHABET.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of RFC 4648 section 10, lower-cased and unpadded.
    #[test]
    fn the_published_vectors_hold() {
        for (raw, expected) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(encode(raw.as_bytes()), expected);
        }
    }

    /// U34
    #[test]
    fn sixteen_bytes_are_twenty_six_characters() {
        assert_eq!(encode(&[0xff; 16]).len(), 26);
        assert_eq!(encode(&[0; 32]).len(), 52);
    }
}
