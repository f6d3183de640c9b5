//! API tokens: how one looks, and what is kept of it.
//!
//! A token is `coldframe_`, 52 base32 characters (256 random bits) and 7 more
//! that are a checksum, so that a leak scanner can recognise one and drop false
//! hits without asking us (S68). Storage keeps only the SHA-256 of the text;
//! with 256 random bits there is nothing to guess, so no slow hash is needed.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::{base32, secret::Secret};

/// What every token begins with.
pub const PREFIX: &str = "coldframe_";

/// A token as its holder has it.
#[derive(Clone, Debug)]
pub struct Token(Secret);

/// The only form in which a token is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

/// A text that is not a token. Says nothing about the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token: expected \"coldframe_\" and 59 characters with a valid checksum")]
pub struct InvalidToken;

impl Token {
    /// Makes a token from 32 random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        let body = base32::encode(&bytes);
        let checksum = checksum(&body);
        Self(Secret::new(format!("{PREFIX}{body}{checksum}")))
    }

    /// The text, to show its owner once.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// What the store keeps.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.expose().as_bytes()).into())
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(raw: &str) -> Result<Self, InvalidToken> {
        let rest = raw.strip_prefix(PREFIX).ok_or(InvalidToken)?;
        if rest.len() != 59 || !base32::is_encoded(rest) {
            return Err(InvalidToken);
        }
        let (body, given) = rest.split_at(52);
        if checksum(body) != given {
            return Err(InvalidToken);
        }
        Ok(Self(Secret::new(raw.to_owned())))
    }
}

impl TokenHash {
    /// Restores a hash that was stored as lower-case hexadecimal.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let bytes = hex.as_bytes();
        if bytes.len() != 64 {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(bytes.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }

    /// Whether both are the same, in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

fn checksum(body: &str) -> String {
    base32::encode(&crc32fast::hash(body.as_bytes()).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S68
    #[test]
    fn a_token_is_recognisable_and_checks_itself() {
        let token = Token::from_random([9; 32]);
        assert!(token.expose().starts_with("coldframe_"));
        assert_eq!(token.expose().len(), 69);
        let mut altered = token.expose().to_owned();
        altered.replace_range(20..21, if &altered[20..21] == "a" { "b" } else { "a" });
        assert!(altered.parse::<Token>().is_err());
        assert!(token.expose().parse::<Token>().is_ok());
    }

    #[test]
    fn a_stored_hash_reads_back_as_itself() {
        let hash = Token::from_random([3; 32]).hash();
        assert!(TokenHash::from_hex(&hash.to_string()).unwrap().matches(&hash));
        assert!(TokenHash::from_hex("zz").is_none());
    }

    #[test]
    fn a_token_does_not_print() {
        let shown = format!("{:?}", Token::from_random([9; 32]));
        assert!(!shown.contains("coldframe_"), "{shown}");
    }
}
