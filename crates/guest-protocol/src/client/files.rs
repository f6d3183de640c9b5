//! Files of a sandbox.

use bytes::Bytes;
use http::{Request, header};

use super::{Body, ClientError, GuestClient, Transport, USER_HEADER, unreadable};
use crate::{
    filesystem::{
        EntryInfo, EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
        SERVICE, WriteInfo,
    },
    process::Empty,
};

impl<T: Transport> GuestClient<T> {
    /// Reads a file: its length, if the guest says it, and its bytes.
    pub async fn read_file(
        &self,
        path: &str,
        user: &str,
    ) -> Result<(Option<u64>, Body), ClientError> {
        let request = Request::get(format!("/files?path={}", encode(path)))
            .header(USER_HEADER, user)
            .body(super::full(Bytes::new()))
            .map_err(unreadable)?;
        let response = self.send(request).await?;
        let length = response.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        Ok((length, response.into_body()))
    }

    /// Writes a file, making its parents. An existing file is replaced.
    pub async fn write_file(
        &self,
        path: &str,
        user: &str,
        body: Body,
    ) -> Result<WriteInfo, ClientError> {
        let request = Request::post(format!("/files?path={}", encode(path)))
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(USER_HEADER, user)
            .body(body)
            .map_err(unreadable)?;
        let response = self.send(request).await?;
        let body = super::collect(response.into_body(), super::MAX_ERROR).await?;
        let written: Vec<WriteInfo> = serde_json::from_slice(&body).map_err(unreadable)?;
        written.into_iter().next().ok_or_else(|| unreadable("no file was written"))
    }

    /// What is at `path`.
    pub async fn stat(&self, path: &str, user: &str) -> Result<EntryInfo, ClientError> {
        let request = PathRequest { path: path.to_owned() };
        let response: EntryResponse = self.call(SERVICE, "Stat", user, &request).await?;
        Ok(response.entry)
    }

    /// Entries below a directory, `depth` levels deep.
    pub async fn list_dir(
        &self,
        path: &str,
        depth: u32,
        user: &str,
    ) -> Result<Vec<EntryInfo>, ClientError> {
        let request = ListDirRequest { path: path.to_owned(), depth };
        let response: ListDirResponse = self.call(SERVICE, "ListDir", user, &request).await?;
        Ok(response.entries)
    }

    /// Makes a directory and its parents.
    pub async fn make_dir(&self, path: &str, user: &str) -> Result<EntryInfo, ClientError> {
        let request = PathRequest { path: path.to_owned() };
        let response: EntryResponse = self.call(SERVICE, "MakeDir", user, &request).await?;
        Ok(response.entry)
    }

    /// Removes a file, or a directory with all it holds.
    pub async fn remove(&self, path: &str, user: &str) -> Result<(), ClientError> {
        let request = PathRequest { path: path.to_owned() };
        self.call::<_, Empty>(SERVICE, "Remove", user, &request).await.map(drop)
    }

    /// Renames.
    pub async fn rename(
        &self,
        source: &str,
        destination: &str,
        user: &str,
    ) -> Result<EntryInfo, ClientError> {
        let request =
            MoveRequest { source: source.to_owned(), destination: destination.to_owned() };
        let response: EntryResponse = self.call(SERVICE, "Move", user, &request).await?;
        Ok(response.entry)
    }
}

/// Percent-encodes a query value: everything but unreserved characters.
fn encode(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode;

    #[test]
    fn a_name_with_a_newline_stays_one_value() {
        assert_eq!(encode("/a b/\n&x=1%"), "/a%20b/%0A%26x%3D1%25");
    }
}
