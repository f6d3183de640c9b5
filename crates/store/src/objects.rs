//! Objects: named bytes that outlive this host, in a folder or in S3.
//!
//! Small enough to be held whole: whoever has more cuts it into parts. A call
//! ends by its deadline. What may be tried again is tried again with growing
//! pauses; a refusal is told at once, because no repetition helps.
//!
//! What must hold: no name, error or log line holds a credential. A read is
//! bounded before it is begun. Whether the bytes are the right ones is for the
//! reader to check: nothing here believes that a store gives back what it got.

use std::{fmt, path::Path as FilePath, sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig,
    aws::{AmazonS3Builder, Checksum},
    local::LocalFileSystem,
    path::Path,
    prefix::PrefixStore,
};
use tokio::time::{Instant, sleep, timeout_at};

mod credentials;

use credentials::CredentialsFile;

/// How long a connection may take to come up.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one request may take. The largest is a manifest.
const REQUEST: Duration = Duration::from_secs(60);
/// Between the first two attempts; then twice as long each time, up to [`LONGEST`].
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);
/// Attempts of one call, however much time is left.
const ATTEMPTS: u32 = 8;

/// Where objects are, as an operator says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectSettings {
    /// `file:///folder` or `s3://bucket/prefix`.
    pub url: String,
    /// Where S3 is spoken, if not at Amazon: `https://host:port`.
    pub endpoint: Option<String>,
    /// The region that requests are signed for; S3's own name for it.
    pub signing_region: Option<String>,
    /// A file with `aws_access_key_id = …` and `aws_secret_access_key = …`; the
    /// environment's variables without one. Read again when it changes.
    pub credentials: Option<std::path::PathBuf>,
    /// How long one request may take; a minute if absent.
    pub patience: Option<Duration>,
}

/// Why an object could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The settings name no object store.
    #[error("{0}")]
    Settings(String),
    /// There is no such object.
    #[error("the object store has lost an object")]
    NotFound,
    /// There is one already, with other content.
    #[error("the object store holds something else under that name")]
    Exists,
    /// It does not accept our credentials, or forbids this.
    #[error("the object store refused the request; its credentials may have expired")]
    Denied(#[source] Box<object_store::Error>),
    /// It does not answer as it should, or not in time.
    #[error("the object store does not answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An object is larger than what was written.
    #[error("the object store gave back more than was stored")]
    TooLarge,
}

/// An object store. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    place: Arc<str>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&self.place).finish()
    }
}

impl Objects {
    /// Opens what the settings name. A folder is made if it is missing; S3 is
    /// not asked anything yet.
    pub fn open(settings: &ObjectSettings) -> Result<Self, ObjectError> {
        let url = settings.url.as_str();
        match url.split_once("://") {
            Some(("file", path)) => Self::folder(FilePath::new(path)),
            Some(("s3", rest)) => Self::s3(rest, settings),
            _ => Err(invalid("write objects like file:///folder or s3://bucket/prefix")),
        }
    }

    /// Objects as files of a folder.
    pub fn folder(path: &FilePath) -> Result<Self, ObjectError> {
        use std::os::unix::fs::DirBuilderExt as _;
        if !path.is_absolute() {
            return Err(invalid("the folder of objects is an absolute path"));
        }
        let unusable = |error: &dyn fmt::Display| {
            invalid(format!("the folder of objects cannot be used: {error}"))
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| unusable(&error))?;
        let store = LocalFileSystem::new_with_prefix(path).map_err(|error| unusable(&error))?;
        let store = Arc::new(store.with_fsync(true));
        Ok(Self { store, place: format!("file://{}", path.display()).into() })
    }

    fn s3(place: &str, settings: &ObjectSettings) -> Result<Self, ObjectError> {
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() || place.contains(['@', '?', '#']) {
            return Err(invalid("write objects in S3 like s3://bucket/prefix"));
        }
        let options = ClientOptions::new()
            .with_connect_timeout(CONNECT)
            .with_timeout(settings.patience.unwrap_or(REQUEST))
            .with_allow_http(
                settings.endpoint.as_ref().is_some_and(|url| url.starts_with("http:")),
            );
        // Repetition is ours: it has one deadline, and fresh credentials.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(settings.signing_region.as_deref().unwrap_or("us-east-1"))
            // The store refuses what arrives otherwise than it was sent.
            .with_checksum_algorithm(Checksum::SHA256)
            .with_client_options(options)
            .with_retry(retry);
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let credentials = match &settings.credentials {
            Some(path) => CredentialsFile::open(path.clone()),
            None => CredentialsFile::environment(|name| std::env::var(name).ok()),
        };
        let credentials = credentials.map_err(invalid)?;
        let store = builder.with_credentials(Arc::new(credentials)).build();
        let store = store.map_err(|error| invalid(format!("objects: {error}")))?;
        let store: Arc<dyn ObjectStore> = match prefix.trim_matches('/') {
            "" => Arc::new(store),
            prefix => Arc::new(PrefixStore::new(store, prefix)),
        };
        Ok(Self { store, place: format!("s3://{place}").into() })
    }

    /// Writes an object under a name that is used once. The same bytes again are
    /// no error: an answer may have been lost.
    pub async fn put_new(
        &self,
        name: &str,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<(), ObjectError> {
        let path = Path::from(name);
        let written = self
            .attempts(deadline, || async {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let payload = PutPayload::from_bytes(bytes.clone());
                self.store.put_opts(&path, payload, options).await.map_err(from_store)
            })
            .await;
        match written {
            Err(ObjectError::Exists) => {
                let there = self.get(name, bytes.len(), deadline).await;
                match there {
                    Ok(there) if there == bytes => Ok(()),
                    Ok(_) | Err(ObjectError::TooLarge) => Err(ObjectError::Exists),
                    Err(error) => Err(error),
                }
            }
            written => written.map(drop),
        }
    }

    /// Writes an object, whatever was there.
    pub async fn put(
        &self,
        name: &str,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<(), ObjectError> {
        let path = Path::from(name);
        let written = self.attempts(deadline, || async {
            let payload = PutPayload::from_bytes(bytes.clone());
            self.store.put(&path, payload).await.map_err(from_store)
        });
        written.await.map(drop)
    }

    /// Reads an object of at most `most` bytes.
    pub async fn get(
        &self,
        name: &str,
        most: usize,
        deadline: Instant,
    ) -> Result<Bytes, ObjectError> {
        let path = Path::from(name);
        let read = self.attempts(deadline, || async {
            let found = self.store.get(&path).await.map_err(from_store)?;
            let size = found.meta.size;
            if size > most as u64 {
                return Err(ObjectError::TooLarge);
            }
            let bytes = found.bytes().await.map_err(from_store)?;
            // A body that broke off in silence.
            if bytes.len() as u64 != size {
                return Err(ObjectError::Unavailable("the answer broke off".into()));
            }
            Ok(bytes)
        });
        read.await
    }

    /// The names below a prefix, each with its size.
    pub async fn list(
        &self,
        prefix: &str,
        deadline: Instant,
    ) -> Result<Vec<(String, u64)>, ObjectError> {
        use futures::TryStreamExt as _;
        let prefix = Path::from(prefix);
        let listed = self.attempts(deadline, || async {
            let found =
                self.store.list(Some(&prefix)).map_ok(|meta| (meta.location.into(), meta.size));
            found.try_collect().await.map_err(from_store)
        });
        listed.await
    }

    /// Removes an object. An absent one is no error.
    pub async fn delete(&self, name: &str, deadline: Instant) -> Result<(), ObjectError> {
        let path = Path::from(name);
        let deleted = self
            .attempts(deadline, || async { self.store.delete(&path).await.map_err(from_store) })
            .await;
        match deleted {
            Err(ObjectError::NotFound) => Ok(()),
            deleted => deleted,
        }
    }

    /// Removes everything below a prefix, and looks whether that is so.
    pub async fn delete_all(&self, prefix: &str, deadline: Instant) -> Result<(), ObjectError> {
        for _ in 0..ATTEMPTS {
            let names = self.list(prefix, deadline).await?;
            if names.is_empty() {
                return Ok(());
            }
            for (name, _) in names {
                self.delete(&name, deadline).await?;
            }
        }
        Err(ObjectError::Unavailable("it keeps objects that were deleted".into()))
    }

    /// Tries until it works, is refused, or the time is over.
    async fn attempts<T, F: Future<Output = Result<T, ObjectError>>>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, ObjectError> {
        let mut pause = PAUSE;
        let mut last = ObjectError::Unavailable("it did not answer in time".into());
        for _ in 0..ATTEMPTS {
            match timeout_at(deadline, attempt()).await {
                Ok(Err(error @ ObjectError::Unavailable(_))) => {
                    tracing::debug!(place = &*self.place, error = %cause(&error), "an object store is asked again");
                    last = error;
                }
                Ok(settled) => return settled,
                Err(_) => return Err(last),
            }
            if timeout_at(deadline, sleep(pause)).await.is_err() {
                return Err(last);
            }
            pause = (pause * 2).min(LONGEST);
        }
        Err(last)
    }
}

fn invalid(text: impl Into<String>) -> ObjectError {
    ObjectError::Settings(text.into())
}

/// The innermost cause: an outer text may repeat the whole request.
fn cause(error: &ObjectError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn from_store(error: object_store::Error) -> ObjectError {
    use object_store::Error;
    match error {
        Error::NotFound { .. } => ObjectError::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } => ObjectError::Exists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            ObjectError::Denied(Box::new(error))
        }
        error if is_refusal(&error) => ObjectError::Denied(Box::new(error)),
        error => ObjectError::Unavailable(Box::new(error)),
    }
}

/// Whether a request was answered with 401 or 403. Of a list, the library tells
/// that in its text alone.
fn is_refusal(error: &object_store::Error) -> bool {
    let causes =
        std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.into_iter().any(|cause| {
        let text = cause.to_string();
        ["status code: 401", "status code: 403"]
            .iter()
            .any(|status| text.starts_with("Server returned") && text.contains(status))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> ObjectSettings {
        ObjectSettings { url: url.to_owned(), ..ObjectSettings::default() }
    }

    #[test]
    fn settings_that_name_no_store_are_told_apart() {
        for url in ["", "/var/x", "http://host/x", "file://relative", "s3://", "s3:///x"] {
            assert!(
                matches!(Objects::open(&settings(url)), Err(ObjectError::Settings(_))),
                "{url}"
            );
        }
        let url = "s3://user:hunter2@bucket/x";
        let error = Objects::open(&settings(url)).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn a_folder_keeps_objects() {
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::folder(&folder.path().join("objects")).unwrap();
        let deadline = Instant::now() + REQUEST;
        objects.put("a/b", Bytes::from_static(b"one"), deadline).await.unwrap();
        objects.put("a/b", Bytes::from_static(b"two"), deadline).await.unwrap();
        let new = objects.put_new("a/b", Bytes::from_static(b"two"), deadline).await;
        assert!(new.is_ok(), "{new:?}");
        let other = objects.put_new("a/b", Bytes::from_static(b"three"), deadline).await;
        assert!(matches!(other, Err(ObjectError::Exists)), "{other:?}");
        assert_eq!(objects.get("a/b", 3, deadline).await.unwrap().as_ref(), b"two");
        let large = objects.get("a/b", 2, deadline).await;
        assert!(matches!(large, Err(ObjectError::TooLarge)), "{large:?}");
        objects.put("a/c", Bytes::new(), deadline).await.unwrap();
        let mut listed = objects.list("a", deadline).await.unwrap();
        listed.sort();
        assert_eq!(listed, [("a/b".to_owned(), 3), ("a/c".to_owned(), 0)]);
        objects.delete_all("a", deadline).await.unwrap();
        objects.delete("a/b", deadline).await.unwrap();
        assert!(matches!(objects.get("a/b", 3, deadline).await, Err(ObjectError::NotFound)));
    }
}
