//! What is asked of a build, and what it tells whoever follows it.

use domain::template::TemplateName;
use store::{archive::context::Context, templates::Template};
use tokio::sync::mpsc;

use crate::{egress::Network, error::Error, sandboxes::request::SizeChoice};

/// Events that wait for whoever follows.
const QUEUE: usize = 64;

/// A request to build a template.
#[derive(Clone, Debug)]
pub struct NewTemplate {
    /// What it is to be called.
    pub name: TemplateName,
    /// Its description.
    pub description: String,
    /// The files it may copy.
    pub context: Context,
    /// The size of its sandboxes; that of its base if absent.
    pub size: Option<SizeChoice>,
    /// What its steps can reach.
    pub network: Network,
}

/// A build under way: its events, in order; the last one is
/// [`Event::Built`] or [`Event::Failed`]. Dropping it ends the build.
#[derive(Debug)]
pub struct Build(mpsc::Receiver<Event>);

/// What happens in a build.
#[derive(Debug)]
pub enum Event {
    /// A step begins, or was done before.
    Step {
        /// Counted from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// Where it is in the description.
        line: usize,
        /// What it says.
        text: String,
        /// Whether an earlier build has done it.
        cached: bool,
    },
    /// A program printed something.
    Output {
        /// Where.
        channel: Channel,
        /// What.
        text: String,
    },
    /// Something worth knowing.
    Note {
        /// What.
        text: String,
    },
    /// It is built.
    Built(Box<Template>),
    /// It is not.
    Failed(Error),
}

/// Where a program prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Where events go.
#[derive(Debug)]
pub(super) struct Feed(mpsc::Sender<Event>);

impl Build {
    /// The next event; nothing after the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }
}

impl Feed {
    /// Where events go, and where they come out.
    pub(super) fn new() -> (Self, Build) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), Build(receiver))
    }

    /// Waits until nobody follows any more.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }

    /// Tells whoever follows; nobody is no error, because then the build ends.
    pub(super) async fn tell(&self, event: Event) {
        drop(self.0.send(event).await);
    }

    pub(super) async fn note(&self, text: impl Into<String>) {
        self.tell(Event::Note { text: text.into() }).await;
    }
}
