//! Typed ids: a prefix that names the noun, then 26 base32 characters.
//!
//! The prefix makes an id recognisable in a log and impossible to confuse with
//! another noun's; the type makes it impossible in code. [`Alias`] is the other
//! name of a sandbox, for hostnames and the E2B-compatible surface, so that an
//! id in a log never opens a door.

use std::{fmt, str::FromStr};

use crate::base32;

/// A text that is not an id of the noun it was read as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {noun} id: expected \"{prefix}\" and 26 characters a-z or 2-7")]
pub struct InvalidId {
    noun: &'static str,
    prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $noun:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// What every id of this noun begins with.
            pub const PREFIX: &'static str = $prefix;

            /// Makes an id from 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(format!("{}{}", $prefix, base32::encode(&bytes)))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(raw: &str) -> Result<Self, InvalidId> {
                match raw.strip_prefix($prefix) {
                    Some(rest) if rest.len() == 26 && base32::is_encoded(rest) => {
                        Ok(Self(raw.to_owned()))
                    }
                    _ => Err(InvalidId { noun: $noun, prefix: $prefix }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = String::deserialize(deserializer)?;
                raw.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A sandbox.
    SandboxId, "sandbox", "sbx_"
);
id!(
    /// An organisation: the outermost owner of everything.
    OrganizationId, "organization", "org_"
);
id!(
    /// A person, or the built-in administrator of a fresh installation.
    UserId, "user", "usr_"
);
id!(
    /// An API token. Names it in lists and in the audit log; it is not the secret.
    TokenId, "token", "tok_"
);
id!(
    /// One line of the audit log.
    AuditId, "audit", "aud_"
);

id!(
    /// A snapshot.
    SnapshotId, "snapshot", "snp_"
);
id!(
    /// A volume.
    VolumeId, "volume", "vol_"
);
id!(
    /// A checkpoint of a volume.
    CheckpointId, "checkpoint", "chk_"
);
id!(
    /// A template that was built from a description.
    TemplateId, "template", "tpl_"
);
id!(
    /// A piece of work in a sandbox, with an account of its own inside.
    SessionId, "session", "ses_"
);

/// A sandbox's name in hostnames: 26 base32 characters, 128 random bits.
///
/// Unrelated to the id, so that neither can be derived from the other (U34).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alias(String);

impl Alias {
    /// Makes an alias from 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(base32::encode(&bytes))
    }

    /// The alias as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Alias {
    type Err = InvalidId;

    fn from_str(raw: &str) -> Result<Self, InvalidId> {
        if raw.len() == 26 && base32::is_encoded(raw) {
            return Ok(Self(raw.to_owned()));
        }
        Err(InvalidId { noun: "alias", prefix: "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U34, S68
    #[test]
    fn an_id_is_a_prefix_and_26_characters() {
        let id = SandboxId::from_random([7; 16]);
        assert!(id.as_str().starts_with("sbx_"));
        assert_eq!(id.as_str().len(), 30);
        assert_eq!(id.as_str().parse::<SandboxId>(), Ok(id));
    }

    #[test]
    fn an_id_of_another_noun_is_refused() {
        let token = TokenId::from_random([1; 16]);
        assert!(token.as_str().parse::<SandboxId>().is_err());
    }

    #[test]
    fn no_path_or_case_variant_is_an_id() {
        for raw in [
            "",
            "sbx_",
            "sbx_../../../../etc/passwd_____",
            "SBX_AAAAAAAAAAAAAAAAAAAAAAAAAA",
            "sbx_aaaaaaaaaaaaaaaaaaaaaaaaa1",
            "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert!(raw.parse::<SandboxId>().is_err(), "{raw:?}");
        }
    }
}
