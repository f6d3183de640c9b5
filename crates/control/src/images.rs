//! Images: what there is to start from.

use async_trait::async_trait;
use domain::{
    caller::Caller,
    image::{Image, ImageName, digest::Digest},
};

use crate::{
    Control,
    authority::{Action, Owner, may},
    control::detail,
    error::Error,
};

/// The images of this machine.
#[async_trait]
pub trait Images: std::fmt::Debug + Send + Sync {
    /// Finds an image and checks its signature and digests.
    ///
    /// What it returns may be started. An image that does not verify is an
    /// error, never a warning.
    async fn verified(&self, name: &ImageName) -> Result<Image, ImagesError>;

    /// Lists what is installed, whether or not it verifies.
    async fn list(&self) -> Result<Vec<ImageSummary>, ImagesError>;
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// There is none of that name.
    #[error("there is no such image")]
    NotFound,
    /// It does not verify.
    #[error("the image does not verify")]
    Refused(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It could not be read.
    #[error("the image could not be read")]
    Unreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What a list says about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSummary {
    /// Its name.
    pub name: ImageName,
    /// Digest of its manifest.
    pub digest: Digest,
    /// The distribution release in it.
    pub release: String,
    /// Bytes on disk.
    pub size_bytes: u64,
    /// Whether a sandbox can start from it.
    pub ready: bool,
}

impl Control {
    /// Lists the images.
    pub async fn list_images(&self, caller: &Caller) -> Result<Vec<ImageSummary>, Error> {
        let action = Action::ImageList;
        let judged = may(caller, action, Owner::Caller).map_err(Error::from);
        let judged = judged.map(|permit| (permit, ()));
        self.record(caller, action, None, detail([]), judged).await?;
        self.images().list().await.map_err(internal)
    }

    /// Shows one.
    pub async fn get_image(
        &self,
        caller: &Caller,
        name: &ImageName,
    ) -> Result<ImageSummary, Error> {
        let action = Action::ImageGet;
        let judged = async {
            let permit = may(caller, action, Owner::Caller)?;
            let images = self.images().list().await.map_err(internal)?;
            let found = images.into_iter().find(|image| image.name == *name);
            Ok((permit, found.ok_or(Error::NotFound { noun: "image" })?))
        };
        let judged = judged.await;
        self.record(caller, action, Some(name.as_str()), detail([]), judged).await
    }
}

fn internal(error: ImagesError) -> Error {
    Error::Internal { source: Box::new(error) }
}
