//! Images: what there is to start from.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use domain::{
    caller::Caller,
    image::{Image, ImageFile, ImageName, digest::Digest},
    template::description::Reference,
};
use store::{
    images::{
        HeldImage, ImageError, ImageStore,
        built::{BuildError, BuiltImages, PREFIX},
    },
    oci::{Blobs, OciError, registry::Registries},
};

use crate::{
    Control,
    authority::{Action, Owner, may},
    control::detail,
    error::Error,
};

/// The image whose kernel runs what is made of OCI images.
const BASE: &str = "base";

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

    /// Finds an image by its digest, those included that were made here.
    async fn with_digest(&self, _digest: Digest) -> Result<Image, ImagesError> {
        Err(ImagesError::NotFound)
    }

    /// Makes an image of an OCI image, or finds the one that was made of it.
    async fn make(&self, _source: OciSource) -> Result<Made, MakeError> {
        let none = "no image can be made here".to_owned();
        Err(oci(OciError::Forbidden(none)))
    }

    /// Removes images that were made here, but those that are called `needed` or
    /// have a digest of `used`.
    async fn sweep(&self, _needed: &[ImageName], _used: &[Digest]) {}
}

/// Where an OCI image lies.
#[derive(Clone, Debug)]
pub enum OciSource {
    /// In a registry.
    Registry(Reference),
    /// In an archive or a layout, and which of the images there.
    Blobs(Blobs, Option<String>),
}

/// An image that was made of an OCI image.
#[derive(Clone, Debug)]
pub struct Made {
    /// The image.
    pub image: Image,
    /// The account of its programs, if it says.
    pub user: Option<String>,
    /// The folder of its programs, if it says.
    pub workdir: Option<String>,
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

/// Why no image was made of an OCI image.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The OCI image cannot be used, or this installation makes none.
    #[error("no image can be made of the OCI image")]
    Oci(#[source] Box<BuildError>),
    /// The base image cannot be used, or the result cannot.
    #[error(transparent)]
    Images(#[from] ImagesError),
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
    /// Images that are made here, and where OCI images may come from.
    built: Option<(BuiltImages, Registries)>,
    /// Unpacking and packing take processors and disk; one at a time.
    making: tokio::sync::Mutex<()>,
}

impl ImageFolder {
    /// The images of `images`.
    pub fn new(images: ImageStore) -> Self {
        Self(Arc::new(Folder {
            images,
            held: Mutex::default(),
            built: None,
            making: tokio::sync::Mutex::default(),
        }))
    }

    /// The same, and images can be made of OCI images.
    pub fn with_built(images: ImageStore, built: BuiltImages, registries: Registries) -> Self {
        Self(Arc::new(Folder {
            images,
            held: Mutex::default(),
            built: Some((built, registries)),
            making: tokio::sync::Mutex::default(),
        }))
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

    async fn with_digest(&self, digest: Digest) -> Result<Image, ImagesError> {
        let folder = self.0.clone();
        blocking(move || folder.with_digest(digest)).await
    }

    async fn make(&self, source: OciSource) -> Result<Made, MakeError> {
        let folder = self.0.clone();
        let Some((built, registries)) = &folder.built else {
            return Err(oci(OciError::Forbidden("no image can be made here".to_owned())));
        };
        let _alone = folder.making.lock().await;
        let work = built.work().map_err(refused)?;
        let fetched = match source {
            OciSource::Registry(reference) => {
                let digest = registries.fetch(&reference, work.path()).await.map_err(oci)?;
                Fetched::Digest(Blobs::Folder(work.path().to_owned()), digest)
            }
            OciSource::Blobs(blobs, reference) => Fetched::Named(blobs, reference),
        };
        let folder = self.0.clone();
        let made = blocking(move || folder.make(fetched)).await;
        drop(work);
        made
    }

    async fn sweep(&self, needed: &[ImageName], used: &[Digest]) {
        let (folder, needed, used) = (self.0.clone(), needed.to_vec(), used.to_vec());
        let _alone = self.0.making.lock().await;
        let swept = blocking(move || {
            folder.sweep(&needed, &used);
            Ok::<_, ImagesError>(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "images that nobody needs were not removed");
        }
    }
}

/// An OCI image whose blobs are at hand.
enum Fetched {
    Digest(Blobs, Digest),
    Named(Blobs, Option<String>),
}

impl Folder {
    /// What an image is made with is the kernel of the base image.
    fn make(&self, fetched: Fetched) -> Result<Made, MakeError> {
        let Some((built, _)) = &self.built else { return Err(ImagesError::NotFound.into()) };
        let base = BASE.parse().map_err(|_| ImagesError::NotFound)?;
        let base = self.images.hold(&base).map_err(refused)?;
        let (blobs, image) = match fetched {
            Fetched::Digest(blobs, digest) => {
                let image = blobs.by_digest(digest).map_err(oci)?;
                (blobs, image)
            }
            Fetched::Named(blobs, reference) => {
                let image = blobs.image(reference.as_deref()).map_err(oci)?;
                (blobs, image)
            }
        };
        let made = built.build(&image, &blobs, &base);
        let made = made.map_err(|error| MakeError::Oci(Box::new(error)))?;
        let held = self.hold(&made.name).map_err(refused)?;
        Ok(Made { image: held, user: image.user, workdir: image.workdir })
    }

    fn with_digest(&self, digest: Digest) -> Result<Image, ImagesError> {
        let built = self.built.as_ref().map(|(built, _)| built.images());
        for images in [Some(&self.images), built].into_iter().flatten() {
            let unreadable = |error| ImagesError::Unreadable(Box::new(error));
            for listed in images.list().map_err(unreadable)? {
                if listed.image.is_ok_and(|image| image.digest == digest) {
                    return self.hold(&listed.name).map_err(refused);
                }
            }
        }
        Err(ImagesError::NotFound)
    }

    fn sweep(&self, needed: &[ImageName], used: &[Digest]) {
        let Some((built, _)) = &self.built else { return };
        let Ok(listed) = built.images().list() else { return };
        for found in listed {
            let digest = found.image.ok().map(|image| image.digest);
            let is_used = digest.is_some_and(|digest| used.contains(&digest));
            if needed.contains(&found.name) || is_used {
                continue;
            }
            if let Some(digest) = digest {
                let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                all.remove(&digest);
            }
            if let Err(error) = built.remove(&found.name) {
                tracing::warn!(image = %found.name, %error, "an image that nobody needs stays");
            }
        }
    }

    fn hold(&self, name: &ImageName) -> Result<Image, ImageError> {
        let held = match &self.built {
            Some((built, _)) if name.as_str().starts_with(PREFIX) => built.images().hold(name)?,
            _ => self.images.hold(name)?,
        };
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

fn oci(error: OciError) -> MakeError {
    MakeError::Oci(Box::new(BuildError::Oci(error)))
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
async fn blocking<T: Send + 'static, E: From<ImagesError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panicked) => Err(ImagesError::Unreadable(Box::new(panicked)).into()),
    }
}
