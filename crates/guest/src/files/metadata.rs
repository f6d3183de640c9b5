//! What a client remembers about a file: headers at upload, extended
//! attributes at rest.

use std::{collections::BTreeMap, io, os::fd::AsFd, path::Path};

use hyper::HeaderMap;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr};

use super::failure::{Failure, Kind};

const HEADER: &str = "x-metadata-";
const ATTRIBUTE: &str = "user.e2b.";
/// The kernel's limits: a name, a value, and all names of a file.
const MAX_NAME: usize = 255 - ATTRIBUTE.len();
const MAX_VALUE: usize = 64 * 1024;

/// Values by name, lower case.
pub(crate) type Metadata = BTreeMap<String, String>;

/// Reads the headers of an upload.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Metadata, Failure> {
    let mut metadata = Metadata::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(HEADER) else { continue };
        let invalid = |text: &str| Failure::new(Kind::Invalid, format!("metadata {name}: {text}"));
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(invalid("the name has no usable length"));
        }
        let value = value.to_str().map_err(|_| invalid("the value is not printable ASCII"))?;
        metadata.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Ok(metadata)
}

/// Reads what a file carries. A file that cannot have any has none.
pub(crate) fn read(path: &Path) -> Metadata {
    let mut names = vec![0; MAX_VALUE];
    let n = listxattr(path, &mut names[..]).unwrap_or(0);
    let mut metadata = Metadata::new();
    for name in ours(&names[..n]) {
        let mut value = vec![0; MAX_VALUE];
        if let Ok(n) = getxattr(path, format!("{ATTRIBUTE}{name}"), &mut value[..]) {
            metadata.insert(name, String::from_utf8_lossy(&value[..n]).into_owned());
        }
    }
    metadata
}

/// Makes a file carry exactly `metadata`.
pub(crate) fn replace(file: impl AsFd, metadata: &Metadata) -> io::Result<()> {
    let mut names = vec![0; MAX_VALUE];
    let n = flistxattr(&file, &mut names[..]).unwrap_or(0);
    for name in ours(&names[..n]) {
        if !metadata.contains_key(&name) {
            fremovexattr(&file, format!("{ATTRIBUTE}{name}"))?;
        }
    }
    for (name, value) in metadata {
        let name = format!("{ATTRIBUTE}{name}");
        fsetxattr(&file, name, value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// Copies what one file carries to another.
pub(crate) fn copy(from: &Path, to: impl AsFd) -> io::Result<()> {
    let mut names = vec![0; MAX_VALUE];
    let n = listxattr(from, &mut names[..]).unwrap_or(0);
    for name in names[..n].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; MAX_VALUE];
        let read = fgetxattr_of(from, name, &mut value)?;
        fsetxattr(&to, name, &value[..read], XattrFlags::empty())?;
    }
    Ok(())
}

fn fgetxattr_of(path: &Path, name: &[u8], value: &mut [u8]) -> io::Result<usize> {
    let file = std::fs::File::open(path)?;
    Ok(fgetxattr(&file, name, value)?)
}

fn ours(names: &[u8]) -> Vec<String> {
    let texts = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    texts.filter_map(|name| name.strip_prefix(ATTRIBUTE)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_become_lower_case_names() {
        let mut headers = HeaderMap::new();
        headers.insert("X-Metadata-Author", "me".parse().unwrap());
        headers.insert("content-type", "text/plain".parse().unwrap());
        let metadata = from_headers(&headers).unwrap();
        assert_eq!(metadata, Metadata::from([("author".into(), "me".into())]));
    }

    #[test]
    fn names_of_others_are_left_alone() {
        let names = b"user.e2b.a\0user.other\0security.x\0user.e2b.b\0";
        assert_eq!(ours(names), ["a", "b"]);
    }
}
