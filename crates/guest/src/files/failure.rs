//! Why file work failed, in the words of both wires.

use std::{fmt::Display, io, path::Path};

use guest_protocol::connect::{Code, Error};
use hyper::{Response, StatusCode};

use crate::http::body::{self, Body};

/// A failure: what a client acts on, and what a person reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

/// What a client can do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    NotFound,
    Exists,
    Invalid,
    Denied,
    /// The writable layer, or the memory behind it, is full.
    NoSpace,
    /// A limit of ours.
    TooMany,
    /// The range lies behind the end.
    Range,
    Internal,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An error of the kernel about a path.
    pub(crate) fn about(path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        match error.raw_os_error() {
            Some(libc::ENOENT) => {
                Self::new(Kind::NotFound, format!("path '{path}' does not exist"))
            }
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                Self::new(Kind::Denied, format!("path '{path}': permission denied"))
            }
            Some(libc::EEXIST | libc::ENOTEMPTY) => {
                Self::new(Kind::Exists, format!("path '{path}' already exists"))
            }
            // Memory, because the layer is memory.
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => {
                Self::new(Kind::NoSpace, "not enough disk space")
            }
            Some(libc::EISDIR) => Self::new(Kind::Invalid, format!("path '{path}' is a directory")),
            Some(
                libc::ENOTDIR
                | libc::EINVAL
                | libc::ENAMETOOLONG
                | libc::ELOOP
                | libc::ETXTBSY
                | libc::EBUSY
                | libc::ENXIO
                | libc::EFBIG
                | libc::ENOTSUP,
            ) => Self::new(Kind::Invalid, format!("path '{path}': {error}")),
            _ => Self::new(Kind::Internal, format!("path '{path}': {error}")),
        }
    }

    /// A task that did not end by itself.
    pub(crate) fn internal(error: impl Display) -> Self {
        Self::new(Kind::Internal, error.to_string())
    }

    /// The answer of `/files`.
    pub(crate) fn plain(&self) -> Response<Body> {
        let status = match self.kind {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Exists => StatusCode::CONFLICT,
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Denied => StatusCode::FORBIDDEN,
            Kind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Kind::Range => StatusCode::RANGE_NOT_SATISFIABLE,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        body::plain_error(status, &self.message)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let code = match failure.kind {
            Kind::NotFound => Code::NotFound,
            Kind::Exists => Code::AlreadyExists,
            Kind::Invalid => Code::InvalidArgument,
            Kind::Denied => Code::PermissionDenied,
            Kind::NoSpace | Kind::TooMany => Code::ResourceExhausted,
            Kind::Range => Code::OutOfRange,
            Kind::Internal => Code::Internal,
        };
        Self::new(code, failure.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(errno: i32) -> Kind {
        Failure::about(Path::new("/x"), &io::Error::from_raw_os_error(errno)).kind
    }

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        assert_eq!(kind(libc::ENOSPC), Kind::NoSpace);
        assert_eq!(kind(libc::ENOENT), Kind::NotFound);
        assert_eq!(kind(libc::EACCES), Kind::Denied);
        assert_eq!(kind(libc::EIO), Kind::Internal);
        let full = Failure::new(Kind::NoSpace, "not enough disk space");
        assert_eq!(full.plain().status(), 507);
    }
}
