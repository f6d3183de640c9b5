//! Images: what there is to start from.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use domain::{
    caller::Caller,
    image::{Image, ImageFile, ImageName, digest::Digest},
};
use store::images::{HeldImage, ImageError, ImageStore};

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
    /// Digest of its manifest; absent when it does not verify.
    pub digest: Option<Digest>,
    /// The distribution release in it; empty when it does not verify.
    pub release: String,
    /// Bytes of its files; 0 when it does not verify.
    pub size_bytes: u64,
    /// Whether a sandbox can start from it.
    pub ready: bool,
}

/// The images in the folder of an installation.
///
/// Every image that was handed out is held until the process ends, because
/// templates made from it may be running: it cannot be replaced under them.
#[derive(Clone, Debug)]
pub struct ImageFolder(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    images: ImageStore,
    held: Mutex<HashMap<Digest, HeldImage>>,
}

impl ImageFolder {
    /// The images of `images`.
    pub fn new(images: ImageStore) -> Self {
        Self(Arc::new(Folder { images, held: Mutex::default() }))
    }
}

#[async_trait]
impl Images for ImageFolder {
    async fn verified(&self, name: &ImageName) -> Result<Image, ImagesError> {
        let (folder, name) = (self.0.clone(), name.clone());
        blocking(move || folder.hold(&name).map_err(refused)).await
    }

    async fn list(&self) -> Result<Vec<ImageSummary>, ImagesError> {
        let folder = self.0.clone();
        let listed = blocking(move || {
            folder.images.list().map_err(|error| ImagesError::Unreadable(Box::new(error)))
        });
        Ok(listed
            .await?
            .into_iter()
            .map(|listed| match listed.image {
                Ok(image) => {
                    let size = |file| image.manifest.files.entry(file).size;
                    ImageSummary {
                        name: listed.name,
                        digest: Some(image.digest),
                        size_bytes: ImageFile::ALL.into_iter().map(size).sum(),
                        release: image.manifest.release,
                        ready: true,
                    }
                }
                Err(_) => ImageSummary {
                    name: listed.name,
                    digest: None,
                    release: String::new(),
                    size_bytes: 0,
                    ready: false,
                },
            })
            .collect())
    }
}

impl Folder {
    fn hold(&self, name: &ImageName) -> Result<Image, ImageError> {
        let held = self.images.hold(name)?;
        let image = Image::clone(&held);
        // Nothing panics while it is locked.
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(image.digest).or_insert(held);
        Ok(image)
    }
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

fn refused(error: ImageError) -> ImagesError {
    match error {
        ImageError::NotFound { .. } => ImagesError::NotFound,
        ImageError::Io { .. } => ImagesError::Unreadable(Box::new(error)),
        ImageError::NoTrustedKey { .. }
        | ImageError::Unsigned { .. }
        | ImageError::WrongKey { .. }
        | ImageError::Altered { .. }
        | ImageError::Exposed { .. }
        | ImageError::Malformed { .. }
        | ImageError::NotAnArchive
        | ImageError::InUse { .. } => ImagesError::Refused(Box::new(error)),
    }
}

/// Hashing a file may take a second, which no asynchronous task may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImagesError> + Send + 'static,
) -> Result<T, ImagesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panicked) => Err(ImagesError::Unreadable(Box::new(panicked))),
    }
}
