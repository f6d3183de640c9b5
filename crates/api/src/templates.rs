//! Templates on the wire.
//!
//! A build is one request: the body is a tar file with the description and what
//! it copies, the answer a stream of [`BuildEvent`]s, one JSON object a line. The
//! last one says how it went.

use bytes::{Bytes, BytesMut};
use domain::id::TemplateId;
use futures::{Stream, StreamExt as _, stream::BoxStream};
use http::{Method, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    client::{Client, ClientError},
    problem::Problem,
    time::Time,
};

/// The media type of what is sent.
pub const CONTEXT_TYPE: &str = "application/x-tar";
/// The media type of what is answered.
pub const EVENTS_TYPE: &str = "application/x-ndjson";
/// Where the description is in the tar file unless said otherwise.
pub const DESCRIPTION: &str = "Template";
/// The longest line of events that is read.
const MAX_LINE: usize = 1024 * 1024;

/// How to build a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BuildTemplate {
    /// What it is to be called. A template of that name is replaced once this one
    /// is whole.
    #[param(example = "web")]
    pub name: String,
    /// Where the description is in the tar file; `Template` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// `small`, `medium` or `large`; that of its base if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Processors; needs `memory_mb` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u8>,
    /// Memory in MiB; needs `cpus` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// What the steps may reach; `off` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// In `restricted`, which destinations, separated by commas, as in the
    /// `allow` of a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
}

/// A template that was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Names this build of it.
    #[schema(value_type = String, example = "tpl_aaaaaaaaaaaaaaaaaaaaaaaaaa")]
    pub id: TemplateId,
    /// What it is called, which is what `template` of a sandbox takes.
    #[schema(example = "web")]
    pub name: String,
    /// What its description starts from.
    #[schema(example = "base")]
    pub base: String,
    /// Digest of the image below it.
    pub image_digest: String,
    /// The size class of its sandboxes, absent when numbers were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Processors of its sandboxes.
    pub cpus: u8,
    /// Memory of its sandboxes in MiB.
    pub memory_mb: u32,
    /// When it was built first.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Time,
    /// When it was built last.
    #[schema(value_type = String, format = DateTime)]
    pub built_at: Time,
}

/// What happens in a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BuildEvent {
    /// A step begins, or was done by an earlier build.
    Step {
        /// Counted from 1.
        number: u32,
        /// How many there are.
        of: u32,
        /// Its line in the description.
        line: u32,
        /// What it says.
        text: String,
        /// Whether an earlier build has done it.
        cached: bool,
    },
    /// A program printed something.
    Output {
        /// `stdout` or `stderr`.
        stream: String,
        /// What.
        text: String,
    },
    /// Something worth knowing.
    Note {
        /// What.
        text: String,
    },
    /// Nothing; keeps a quiet connection open.
    Keepalive,
    /// The last event: it is built.
    Built {
        /// What was built.
        template: Template,
    },
    /// The last event: it is not built.
    Failed {
        /// Why.
        problem: Problem,
    },
}

/// Events of a build, as they come.
pub struct Build {
    bytes: BoxStream<'static, Result<Bytes, ClientError>>,
    read: BytesMut,
}

impl std::fmt::Debug for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Build").finish_non_exhaustive()
    }
}

impl Build {
    fn new(bytes: impl Stream<Item = Result<Bytes, ClientError>> + Send + 'static) -> Self {
        Self { bytes: bytes.boxed(), read: BytesMut::new() }
    }

    /// The next event; nothing once the connection has ended.
    ///
    /// # Errors
    /// The connection broke, or what came is no event.
    pub async fn next(&mut self) -> Result<Option<BuildEvent>, ClientError> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(end + 1);
                return serde_json::from_slice(&line).map(Some).map_err(|error| {
                    ClientError::Protocol(format!("a line is no event of a build: {error}"))
                });
            }
            if self.read.len() > MAX_LINE {
                return Err(ClientError::Protocol(format!("a line above {MAX_LINE} bytes")));
            }
            match self.bytes.next().await {
                Some(bytes) => self.read.extend_from_slice(&bytes?),
                None => return Ok(None),
            }
        }
    }
}

impl Client {
    /// Begins to build a template from a tar file. Dropping the build ends it.
    pub async fn build_template<B>(
        &self,
        build: &BuildTemplate,
        context: B,
    ) -> Result<Build, ClientError>
    where
        B: Into<reqwest::Body>,
    {
        let request = self.request(Method::POST, &["templates"]).query(build);
        let request = request.header(header::CONTENT_TYPE, CONTEXT_TYPE).body(context);
        let answer = self.send(request).await?;
        let client = self.clone();
        Ok(Build::new(
            answer
                .bytes_stream()
                .map(move |bytes| bytes.map_err(|error| client.unreachable(error))),
        ))
    }

    /// The templates of the organisation.
    pub async fn list_templates(&self) -> Result<Vec<Template>, ClientError> {
        self.get(&["templates"], &()).await
    }

    /// One template.
    pub async fn template(&self, name: &str) -> Result<Template, ClientError> {
        self.get(&["templates", name], &()).await
    }

    /// Removes a template. Sandboxes that were started from it run on.
    pub async fn delete_template(&self, name: &str) -> Result<(), ClientError> {
        self.empty(self.request(Method::DELETE, &["templates", name])).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn events(pieces: &[&str]) -> Vec<Result<Option<BuildEvent>, String>> {
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok(Bytes::copy_from_slice(piece.as_bytes()))).collect();
        let mut build = Build::new(futures::stream::iter(pieces));
        let mut all = Vec::new();
        loop {
            let next = build.next().await.map_err(|error| error.to_string());
            let is_last = !matches!(next, Ok(Some(_)));
            all.push(next);
            if is_last {
                return all;
            }
        }
    }

    #[tokio::test]
    async fn events_are_lines_however_they_arrive() {
        let note = |text: &str| Ok(Some(BuildEvent::Note { text: text.to_owned() }));
        let pieces =
            ["{\"type\":\"no", "te\",\"text\":\"a\"}\n{\"type\":\"note\",\"text\":\"b\"}\n"];
        assert_eq!(events(&pieces).await, [note("a"), note("b"), Ok(None)]);
        assert!(events(&["<html>\n"]).await[0].is_err());
    }

    #[tokio::test]
    async fn a_line_without_end_fills_no_memory() {
        let long = "x".repeat(MAX_LINE);
        assert!(events(&[&long, "yy"]).await[0].is_err());
    }
}
