//! Which account a request works as.
//!
//! The account file may be anything by now, a file system that never answers
//! included. So it is read on a thread that is given up after a while; what needs
//! no name is not concerned.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use guest_protocol::connect::{Code, Error};
use hyper::{HeaderMap, header::AUTHORIZATION};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::Api;
use crate::{account, init::USER};

/// Threads that may read the account file, or hang in it.
pub(crate) const THREADS: usize = 4;
/// A file in memory is read in less than a thousandth of this.
const LIMIT: Duration = Duration::from_secs(2);

/// Unless the request names one.
const DEFAULT: &str = "user";
/// Longer than any account's name.
const MAX_NAME: usize = 256;

/// The name in a `Basic` header, which has no password.
pub(crate) fn named(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let encoded = value.strip_prefix("Basic ").or_else(|| value.strip_prefix("basic "))?;
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (name, _) = decoded.split_once(':')?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Places for reading the account file.
#[derive(Debug)]
pub(crate) struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(THREADS)))
    }
}

impl Readers {
    /// Finds an account, or says in time that it cannot.
    async fn find(&self, name: String) -> Result<Option<account::Account>, Error> {
        let stuck = || Error::new(Code::Unavailable, "/etc/passwd of this sandbox does not answer");
        let reading = async {
            // The semaphore is never closed. A thread that hangs keeps its place.
            let place = self.0.clone().acquire_owned().await.map_err(|_| stuck())?;
            let found = spawn_blocking(move || {
                let found = account::find(&name);
                drop(place);
                found
            });
            let found = found.await.map_err(|_| stuck())?;
            found.map_err(|error| {
                Error::new(Code::Internal, format!("cannot read the accounts: {error}"))
            })
        };
        timeout(LIMIT, reading).await.map_err(|_| stuck())?
    }
}

impl Api {
    /// The number of an account that this sandbox may use.
    pub(crate) async fn account(&self, name: Option<&str>) -> Result<u32, Error> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT);
        if name == DEFAULT {
            // It is the same in every sandbox, so no file has to be believed.
            return self.permit(USER);
        }
        let shown: String = name.chars().take(MAX_NAME).collect();
        let found = self.readers.find(name.to_owned()).await?;
        let account = found.ok_or_else(|| {
            Error::new(Code::Unauthenticated, format!("user {shown} does not exist"))
        })?;
        self.permit(account.uid).map_err(|_| {
            let text = format!("user {shown} may not be used in this sandbox");
            Error::new(Code::PermissionDenied, text)
        })
    }

    /// Whether the host allows an account.
    pub(crate) fn permit(&self, uid: u32) -> Result<u32, Error> {
        if self.accounts.borrow().contains(&uid) {
            return Ok(uid);
        }
        let text = format!("account {uid} may not be used in this sandbox");
        Err(Error::new(Code::PermissionDenied, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: Option<&str>) {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        assert_eq!(named(&headers).as_deref(), expected, "{value}");
    }

    #[test]
    fn a_user_is_named_without_a_password() {
        check("Basic dXNlcjo=", Some("user"));
        check("Basic cm9vdDpwYXNz", Some("root"));
        check("Basic Og==", None);
        check("Basic ???", None);
        check("Bearer dXNlcjo=", None);
        assert_eq!(named(&HeaderMap::new()), None);
    }
}
