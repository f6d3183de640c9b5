//! One end of a copy: a path here, a path in a sandbox, or a standard stream.

use std::{path::PathBuf, str::FromStr};

use domain::id::SandboxId;

/// Where bytes come from or go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// `SANDBOX:PATH`; the path is relative to the account's home if not absolute.
    Sandbox(SandboxId, String),
    /// A path on this machine.
    Here(PathBuf),
    /// `-`: standard input or output.
    Stream,
}

impl FromStr for Location {
    type Err = String;

    fn from_str(raw: &str) -> Result<Self, String> {
        if raw == "-" {
            return Ok(Self::Stream);
        }
        // What begins like an id and has a colon means a sandbox, even misspelt:
        // a file must not be made here because one letter was missing.
        match raw.split_once(':') {
            Some((id, path)) if id.starts_with(SandboxId::PREFIX) => {
                let id = id.parse().map_err(|error| format!("{id:?} is {error}"))?;
                if path.is_empty() {
                    return Err(format!("name a path after the colon, such as {id}:/workspace"));
                }
                if path.contains('\0') {
                    return Err("a path holds no NUL byte".to_owned());
                }
                Ok(Self::Sandbox(id, path.to_owned()))
            }
            _ if raw.is_empty() => Err("an empty path".to_owned()),
            _ => Ok(Self::Here(raw.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn a_sandbox_a_path_and_a_stream_are_told_apart() {
        let id: SandboxId = ID.parse().unwrap();
        let inside = |path: &str| Ok(Location::Sandbox(id.clone(), path.to_owned()));
        assert_eq!(format!("{ID}:/a b\n:c").parse(), inside("/a b\n:c"));
        assert_eq!(format!("{ID}:notes").parse(), inside("notes"));
        assert_eq!("-".parse(), Ok(Location::Stream));
        assert_eq!("./-".parse(), Ok(Location::Here("./-".into())));
        assert_eq!("a:b".parse(), Ok(Location::Here("a:b".into())));
        assert_eq!(format!("./{ID}:x").parse(), Ok(Location::Here(format!("./{ID}:x").into())));
    }

    #[test]
    fn a_misspelt_sandbox_is_not_a_file_name() {
        for raw in ["", "sbx_short:/a", &format!("{ID}:")] {
            assert!(raw.parse::<Location>().is_err(), "{raw:?}");
        }
    }
}
