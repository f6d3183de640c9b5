//! What FROM names: an image, a template, or an OCI image that becomes one.

use std::collections::BTreeMap;

use domain::{
    caller::Caller,
    image::Image,
    size::{Resources, SizeClass},
    template::description::{Base, Place},
};
use store::{archive::context::Context, oci::Blobs};

use super::{
    Foundation,
    plan::{State, account, digest},
};
use crate::{
    Control,
    error::Error,
    images::{ImagesError, MakeError, OciSource},
    sandboxes::request::SizeChoice,
};

/// What the first step starts from.
#[derive(Debug)]
pub(super) struct Ground {
    /// As FROM has it.
    pub(super) said: String,
    pub(super) image: Image,
    pub(super) size: Option<SizeClass>,
    pub(super) resources: Resources,
    /// A digest of all that it is.
    pub(super) key: String,
    /// The machine to start from, where it is not the image alone.
    pub(super) snapshot: Option<domain::id::SnapshotId>,
    /// What the first step inherits.
    pub(super) state: State,
}

impl Control {
    /// Finds what FROM names, and makes an image of it where it must.
    pub(super) async fn ground(
        &self,
        caller: &Caller,
        from: &Base,
        context: &Context,
        size: Option<SizeChoice>,
    ) -> Result<Ground, Error> {
        let failed = |detail: String| Error::BuildFailed { line: Some(1), detail };
        let said = shown(from);
        let source = match from {
            Base::Named(name) => {
                let found = self.foundation(&caller.organization, name).await;
                return match found {
                    Ok(Foundation::Image(image)) => self.on_image(said, *image, size),
                    Ok(Foundation::Template(template, image)) => {
                        let resources = template.resources;
                        if let Some(size) = size
                            && size.resources(&self.settings().tier)? != resources
                        {
                            return Err(Error::invalid(
                                "size",
                                format!("template {name} has its own size; leave the size out"),
                            ));
                        }
                        Ok(Ground {
                            said,
                            key: digest(&["template", template.snapshot.as_str()]),
                            snapshot: Some(template.snapshot.clone()),
                            size: template.size,
                            resources,
                            state: State {
                                workdir: template.workdir.clone(),
                                account: template.account.clone(),
                                ..State::default()
                            },
                            image: *image,
                        })
                    }
                    Err(Error::InvalidRequest { .. }) => Err(failed(format!(
                        "there is no template and no image {:?}; an image of a registry is \
                         written docker://REGISTRY/REPOSITORY:TAG",
                        name.as_str()
                    ))),
                    Err(error) => Err(error),
                };
            }
            Base::Registry(reference) => OciSource::Registry(reference.clone()),
            Base::OciFolder(Place { path, reference }) => {
                OciSource::Blobs(Blobs::Layout(context.clone(), path.clone()), reference.clone())
            }
            Base::OciArchive(place) => {
                let archive = nested(context, place).await.map_err(failed)?;
                OciSource::Blobs(Blobs::Layout(archive, String::new()), place.reference.clone())
            }
            Base::DockerArchive(place) => {
                let archive = nested(context, place).await.map_err(failed)?;
                OciSource::Blobs(Blobs::Saved(archive), place.reference.clone())
            }
        };
        let made = self.images().make(source).await.map_err(|error| match error {
            MakeError::Oci(error) => failed(crate::error::chain(&*error)),
            MakeError::Images(ImagesError::NotFound) => failed(
                "an image needs the kernel of image \"base\", and it is not installed".to_owned(),
            ),
            MakeError::Images(ImagesError::Refused(source) | ImagesError::Unreadable(source)) => {
                Error::Internal { source }
            }
        })?;
        let mut ground = self.on_image(said, made.image, size)?;
        // Other accounts than the guest's own are not programs' to begin as.
        let user = made.user.as_deref().and_then(|user| account(user).ok());
        ground.state.account = user.unwrap_or("root").to_owned();
        if let Some(workdir) = made.workdir {
            ground.state.workdir = super::copy::resolve("/", &workdir);
        }
        Ok(ground)
    }

    fn on_image(
        &self,
        said: String,
        image: Image,
        size: Option<SizeChoice>,
    ) -> Result<Ground, Error> {
        let size = size.unwrap_or(SizeChoice::Class(SizeClass::default()));
        let resources = size.resources(&self.settings().tier)?;
        let inherited: BTreeMap<_, _> = image.manifest.environment.clone();
        Ok(Ground {
            said,
            key: digest(&["image", &image.digest.to_string(), &format!("{resources:?}")]),
            snapshot: None,
            size: size.class(),
            resources,
            state: State {
                environment: BTreeMap::new(),
                inherited,
                workdir: "/".to_owned(),
                account: "root".to_owned(),
            },
            image,
        })
    }
}

/// An archive that lies in the context.
async fn nested(context: &Context, place: &Place) -> Result<Context, String> {
    let absent = || format!("{:?} is no file of the context", place.path);
    let archive = context.open(&place.path).ok_or_else(absent)?;
    let reading = tokio::task::spawn_blocking(move || Context::read(archive)).await;
    let read = reading.map_err(|error| error.to_string())?;
    read.map_err(|error| format!("{:?}: {}", place.path, crate::error::chain(&error)))
}

fn shown(from: &Base) -> String {
    let placed = |prefix: &str, Place { path, reference }: &Place| match reference {
        Some(reference) => format!("{prefix}:{path}:{reference}"),
        None => format!("{prefix}:{path}"),
    };
    match from {
        Base::Named(name) => name.to_string(),
        Base::Registry(reference) => {
            let digest = reference.digest.map(|digest| format!("@{digest}")).unwrap_or_default();
            format!(
                "docker://{}/{}:{}{digest}",
                reference.registry, reference.repository, reference.tag
            )
        }
        Base::OciFolder(place) => placed("oci", place),
        Base::OciArchive(place) => placed("oci-archive", place),
        Base::DockerArchive(place) => placed("docker-archive", place),
    }
}
