//! Credentials for S3: of the environment, or of a file that is read again when
//! it changes, because short-lived ones are renewed by somebody else.

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use object_store::{CredentialProvider, Result, aws::AwsCredential};

/// More than any such file is long.
const MAX_FILE: u64 = 64 * 1024;

/// Where credentials come from.
#[derive(Debug)]
pub(super) struct CredentialsFile {
    path: Option<PathBuf>,
    /// What was read last, and of which state of the file.
    last: Mutex<(Option<Stamp>, Arc<AwsCredential>)>,
}

/// What changes when a file is written or replaced.
type Stamp = (u64, u64, i64, i64);

impl CredentialsFile {
    /// Those of the variables that every S3 client reads.
    pub(super) fn environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> std::result::Result<Self, String> {
        let missing = |name: &str| {
            format!("objects in S3 need credentials: set {name}, or objects_credentials to a file")
        };
        let needed = |name: &str| {
            variable(name).filter(|text| !text.is_empty()).ok_or_else(|| missing(name))
        };
        let credential = AwsCredential {
            key_id: needed("AWS_ACCESS_KEY_ID")?,
            secret_key: needed("AWS_SECRET_ACCESS_KEY")?,
            token: variable("AWS_SESSION_TOKEN").filter(|text| !text.is_empty()),
        };
        Ok(Self { path: None, last: Mutex::new((None, Arc::new(credential))) })
    }

    /// Those of a file that nobody else can read.
    pub(super) fn open(path: PathBuf) -> std::result::Result<Self, String> {
        let (stamp, credential) = read(&path)?;
        let last = Mutex::new((Some(stamp), Arc::new(credential)));
        Ok(Self { path: Some(path), last })
    }

    fn current(&self) -> std::result::Result<Arc<AwsCredential>, String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.path {
            let now = File::open(path).and_then(|file| Ok(stamp(&file.metadata()?)));
            if now.ok() != last.0 {
                let (stamp, credential) = read(path)?;
                *last = (Some(stamp), Arc::new(credential));
            }
        }
        Ok(Arc::clone(&last.1))
    }
}

#[async_trait]
impl CredentialProvider for CredentialsFile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        self.current()
            .map_err(|text| object_store::Error::Generic { store: "S3", source: text.into() })
    }
}

fn stamp(metadata: &std::fs::Metadata) -> Stamp {
    (metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// Reads the file. An error names it and nothing that is in it.
fn read(path: &std::path::Path) -> std::result::Result<(Stamp, AwsCredential), String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.mode() & 0o077 != 0 {
        return Err(format!("{shown} can be read by others; run: chmod 600 {shown}"));
    }
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    let value = |key: &str| {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let mut values = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(key));
        values.next().map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let needed = |key: &str| value(key).ok_or_else(|| format!("{shown} has no line {key} = …"));
    let credential = AwsCredential {
        key_id: needed("aws_access_key_id")?,
        secret_key: needed("aws_secret_access_key")?,
        token: value("aws_session_token"),
    };
    Ok((stamp(&metadata), credential))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn write(path: &std::path::Path, secret: &str) {
        let text = format!("[default]\naws_access_key_id = AK\naws_secret_access_key={secret}\n");
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_file_that_changed_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        write(&path, "one");
        let file = CredentialsFile::open(path.clone()).unwrap();
        assert_eq!(file.current().unwrap().secret_key, "one");
        write(&path, "longer");
        assert_eq!(file.current().unwrap().secret_key, "longer");
    }

    /// S49: what is wrong with a file is told without a word of it.
    #[test]
    fn no_secret_is_in_an_error_or_a_debug_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        write(&path, "hunter2");
        let shown = format!("{:?}", CredentialsFile::open(path.clone()).unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = CredentialsFile::open(path.clone()).unwrap_err();
        assert!(error.contains("chmod 600") && !error.contains("hunter2"), "{error}");
        fs::write(&path, "hunter2").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = CredentialsFile::open(path).unwrap_err();
        assert!(error.contains("aws_access_key_id") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn the_environment_needs_both_parts() {
        let error = CredentialsFile::environment(|name| {
            (name == "AWS_ACCESS_KEY_ID").then(|| "AK".to_owned())
        });
        assert!(error.unwrap_err().contains("AWS_SECRET_ACCESS_KEY"));
    }
}
