//! The description of a template: what to start from and what to do to it.
//!
//! ```text
//!  FROM base                         a template, an image, or an OCI image
//!  RUN pip install numpy             COPY, ENV, WORKDIR, USER likewise
//!  START python3 /app/server.py      runs when the template is captured
//!  READY port 8000                   and this says that it is
//! ```
//!
//! The text is a subset of what a Dockerfile can say, plus `START` and `READY`.
//! It is parsed as a whole, and every mistake is told with its line and what to
//! write instead. What is not understood is refused: an instruction that was
//! skipped would make another template than the one that was described.
//!
//! Deliberately absent: anything that is not in the file and its folder, such as
//! arguments of a build, and several stages.

use std::fmt;

use serde::{Deserialize, Serialize};

mod instruction;
mod lines;
#[cfg(test)]
mod tests;
mod words;

pub use words::Text;

/// The longest description in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// The most steps.
pub const MAX_STEPS: usize = 128;
/// The most mistakes that are told at once.
const MAX_MISTAKES: usize = 20;

/// A description that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// What it starts from.
    pub from: Base,
    /// What is done to it, in order.
    pub steps: Vec<Step>,
    /// What is started at the end and runs on in every sandbox.
    pub start: Option<Command>,
    /// When the template may be captured.
    pub ready: Option<Ready>,
}

/// What a template starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// A template or an image of the installation.
    Named(super::TemplateName),
    /// `docker://REGISTRY/REPOSITORY[:TAG][@DIGEST]`; the operator says which
    /// registry a name stands for.
    Registry(Reference),
    /// `oci:FOLDER[:REF]`: an OCI layout in the context.
    OciFolder(Place),
    /// `oci-archive:FILE[:REF]`: the same in a tar file.
    OciArchive(Place),
    /// `docker-archive:FILE[:REF]`: what `docker save` writes.
    DockerArchive(Place),
}

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The operator's name of the registry.
    pub registry: String,
    /// The repository, such as `library/debian`.
    pub repository: String,
    /// The tag, where there is no digest.
    pub tag: String,
    /// The digest of the manifest; it decides where both are given.
    pub digest: Option<crate::image::digest::Digest>,
}

/// An image in the context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where, relative to the context.
    pub path: String,
    /// Which of the images there; the only one if absent.
    pub reference: Option<String>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The line it begins on.
    pub line: usize,
    /// What it says.
    pub action: Action,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Runs a program to its end.
    Run(Command),
    /// Brings files from the context.
    Copy(Copy),
    /// Sets variables for later steps and for every process of a sandbox.
    Env(Vec<(String, Text)>),
    /// Sets the folder of later steps, and makes it.
    Workdir(Text),
    /// Sets the account of later steps.
    User(Text),
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A line for `/bin/sh -c`.
    Shell(String),
    /// The program and its arguments; at least one.
    Exec(Vec<String>),
}

/// Files and where they go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// From the context; at least one.
    pub sources: Vec<Text>,
    /// Into the sandbox.
    pub destination: Text,
    /// Whose they are: an account and a group; root if absent.
    pub owner: Option<(String, Option<String>)>,
}

/// What shows that a template is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// What is looked for.
    pub when: When,
    /// How many seconds it may take.
    pub within_seconds: u32,
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// A program succeeds.
    Succeeds(Command),
    /// Something listens on a port of loopback.
    Listens(u16),
    /// So many seconds have passed.
    Passed(u32),
}

/// What is wrong in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub what: String,
}

/// Why a text is no description: every mistake, at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Mistake { line, what }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}line {line}: {what}")?;
        }
        Ok(())
    }
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// Every mistake in it.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        let whole = |what: String| Err(Mistakes(vec![Mistake { line: 1, what }]));
        if text.len() > MAX_BYTES {
            return whole(format!("the description is longer than {MAX_BYTES} bytes"));
        }
        if text.contains('\0') {
            return whole("the description is no text".to_owned());
        }
        let mut draft = instruction::Draft::default();
        let mut mistakes = Vec::new();
        for line in lines::lines(text) {
            if let Err(what) = draft.take(&line) {
                mistakes.push(Mistake { line: line.number, what });
            }
        }
        mistakes.truncate(MAX_MISTAKES);
        match draft.finish() {
            Ok(description) if mistakes.is_empty() => Ok(description),
            Err(what) if mistakes.is_empty() => whole(what),
            _ => Err(Mistakes(mistakes)),
        }
    }
}
