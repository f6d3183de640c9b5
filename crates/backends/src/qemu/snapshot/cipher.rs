//! How a snapshot is made noise, and what makes it a snapshot again.
//!
//! AES-256-GCM under a key that is derived from the snapshot's own for one
//! attempt at writing it: each attempt has a salt, so a second attempt never
//! uses a nonce of the first. A nonce is what a part is and its number, so a
//! part in another place does not open, and everything opens only beside the
//! manifest it was written with.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    constant_time::verify_slices_are_equal,
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Salt},
};
use domain::snapshot::SnapshotKey;

/// What sealing adds to a part.
pub(super) const OVERHEAD: usize = 16;

/// Makes one key for one attempt.
pub(super) type AttemptSalt = [u8; 32];

/// Seals and opens the parts of one snapshot.
#[derive(Debug)]
pub(super) struct Cipher {
    key: LessSafeKey,
    mark: KeyMark,
}

/// Tells a key from another without being of use for opening.
#[derive(Clone, Debug)]
pub(super) struct KeyMark([u8; 32]);

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A piece of memory, by number.
    Memory(u64),
    /// Where the pieces belong, and the state of the devices.
    Index,
}

/// A part did not open: another key, or other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotOpened;

impl Part {
    fn nonce(self) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        let (kind, number) = match self {
            Self::Memory(number) => (1, number),
            Self::Index => (2, 0),
        };
        bytes[0] = kind;
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    }
}

impl Cipher {
    /// The cipher of one attempt to write snapshot `name`.
    pub(super) fn new(
        key: &SnapshotKey,
        salt: &AttemptSalt,
        name: &str,
    ) -> Result<Self, Unspecified> {
        let secret = Salt::new(HKDF_SHA256, salt).extract(key.expose());
        let info = [b"coldframe snapshot key ".as_slice(), name.as_bytes()];
        let key = UnboundKey::from(secret.expand(&info, &AES_256_GCM)?);
        let mut mark = [0; 32];
        let info = [b"coldframe snapshot mark ".as_slice(), name.as_bytes()];
        secret.expand(&info, MarkLength)?.fill(&mut mark)?;
        Ok(Self { key: LessSafeKey::new(key), mark: KeyMark(mark) })
    }

    /// Tells this key from others.
    pub(super) fn mark(&self) -> KeyMark {
        self.mark.clone()
    }

    /// Seals a part in its place and adds [`OVERHEAD`] bytes.
    pub(super) fn seal(
        &self,
        part: Part,
        beside: &[u8],
        content: &mut Vec<u8>,
    ) -> Result<(), Unspecified> {
        let tag = self.key.seal_in_place_separate_tag(part.nonce(), Aad::from(beside), content)?;
        content.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Opens a part in its place.
    pub(super) fn open<'a>(
        &self,
        part: Part,
        beside: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], NotOpened> {
        let opened = self.key.open_in_place(part.nonce(), Aad::from(beside), sealed);
        opened.map_err(|Unspecified| NotOpened)
    }
}

impl PartialEq for KeyMark {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

struct MarkLength;

impl KeyType for MarkLength {
    fn len(&self) -> usize {
        32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cipher(key: u8, salt: u8, name: &str) -> Cipher {
        Cipher::new(&SnapshotKey::from_random([key; 32]), &[salt; 32], name).unwrap()
    }

    proptest! {
        /// S49, U40: what was sealed opens, and nothing else does.
        #[test]
        fn a_part_opens_with_its_key_in_its_place_unchanged(
            content in prop::collection::vec(any::<u8>(), 0..300),
            number in 0u64..4,
            flip in any::<prop::sample::Index>(),
            cut in 1usize..20,
        ) {
            let part = Part::Memory(number);
            let ours = cipher(1, 1, "a");
            let mut sealed = content.clone();
            ours.seal(part, b"m", &mut sealed).unwrap();
            prop_assert_eq!(sealed.len(), content.len() + OVERHEAD);
            let mut opened = sealed.clone();
            prop_assert_eq!(&*ours.open(part, b"m", &mut opened).unwrap(), &content[..]);
            let refused = |cipher: &Cipher, part, beside: &[u8], bytes: &[u8]| {
                cipher.open(part, beside, &mut bytes.to_vec()).is_err()
            };
            prop_assert!(refused(&cipher(2, 1, "a"), part, b"m", &sealed));
            prop_assert!(refused(&cipher(1, 2, "a"), part, b"m", &sealed));
            prop_assert!(refused(&cipher(1, 1, "b"), part, b"m", &sealed));
            prop_assert!(refused(&ours, Part::Memory(number + 1), b"m", &sealed));
            prop_assert!(refused(&ours, Part::Index, b"m", &sealed));
            prop_assert!(refused(&ours, part, b"n", &sealed));
            prop_assert!(refused(&ours, part, b"m", &sealed[..sealed.len().saturating_sub(cut)]));
            let mut flipped = sealed.clone();
            let at = flip.index(flipped.len());
            flipped[at] ^= 1;
            prop_assert!(refused(&ours, part, b"m", &flipped));
        }
    }

    #[test]
    fn a_key_is_told_from_another() {
        assert!(cipher(1, 1, "a").mark() == cipher(1, 1, "a").mark());
        assert!(cipher(1, 1, "a").mark() != cipher(2, 1, "a").mark());
    }
}
