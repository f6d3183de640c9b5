//! Templates: what was built from a description, by name.
//!
//! Building is in [`build`]; here they are seen and removed. A template is a
//! snapshot with a name, and the steps on the way to it are snapshots under keys
//! ([`plan`]); whatever stops referring to a snapshot removes it.

use domain::{
    caller::Caller,
    id::{OrganizationId, SnapshotId},
    image::{Image, ImageName},
    template::TemplateName,
};
use store::archive::context::Section;
pub use store::templates::Template;

use crate::{
    Control,
    authority::{Action, Owner, Permit, may},
    control::{Detail, detail},
    error::Error,
    images::ImagesError,
};

mod base;
mod build;
mod copy;
mod events;
mod kept;
mod plan;
mod ready;
mod workshop;

pub use events::{Build, Channel, Event, NewTemplate};
pub use store::archive::{ArchiveError, context::Context};

/// Reads the names in a tar file that a client sent. Blocks on the disk.
pub fn context(file: std::fs::File) -> Result<Context, ArchiveError> {
    let whole = Section::whole(file).map_err(ArchiveError::Unreadable)?;
    Context::read(whole)
}

/// What a sandbox is to start from.
#[derive(Clone, Debug)]
pub(crate) enum Foundation {
    /// An installed image.
    Image(Box<Image>),
    /// A template of the organisation, and the image below it.
    Template(Box<Template>, Box<Image>),
}

impl Control {
    /// Lists the templates of the organisation, by name.
    pub async fn list_templates(&self, caller: &Caller) -> Result<Vec<Template>, Error> {
        let action = Action::TemplateList;
        let judged = async {
            let permit = may(caller, action, Owner::Caller)?;
            Ok((permit, self.store().templates(&caller.organization).await?))
        };
        let judged = judged.await;
        self.record(caller, action, None, detail([]), judged).await
    }

    /// Shows one.
    pub async fn get_template(
        &self,
        caller: &Caller,
        name: &TemplateName,
    ) -> Result<Template, Error> {
        let action = Action::TemplateGet;
        let judged = self.judge_template(caller, action, name).await;
        self.record(caller, action, Some(name.as_str()), Detail::new(), judged).await
    }

    /// Removes a template and the steps that only it used. Sandboxes that were
    /// started from it run on.
    pub async fn delete_template(&self, caller: &Caller, name: &TemplateName) -> Result<(), Error> {
        let action = Action::TemplateDelete;
        let object = Some(name.as_str());
        let (permit, _) = match self.judge_template(caller, action, name).await {
            Ok(judged) => judged,
            Err(error) => {
                return Err(self.refuse(caller, action, object, Detail::new(), error).await);
            }
        };
        let line = self.allowed(caller, permit, object, Detail::new());
        let gone = self.store().remove_template(&caller.organization, name, &line).await?;
        for snapshot in gone {
            self.discard_snapshot(&snapshot).await;
        }
        self.sweep_images().await;
        Ok(())
    }

    async fn judge_template(
        &self,
        caller: &Caller,
        action: Action,
        name: &TemplateName,
    ) -> Result<(Permit, Template), Error> {
        let permit = may(caller, action, Owner::Caller)?;
        let found = self.store().template(&caller.organization, name).await?;
        Ok((permit, found.ok_or(Error::NotFound { noun: "template" })?))
    }

    /// What the name of a template stands for, in an organisation: an image that
    /// is installed, or what the organisation built.
    pub(crate) async fn foundation(
        &self,
        organization: &OrganizationId,
        name: &TemplateName,
    ) -> Result<Foundation, Error> {
        let unknown = || Error::InvalidRequest {
            field: "template",
            detail: format!("there is no template {:?}", name.as_str()),
        };
        if let Some(image) = self.installed(name).await? {
            return Ok(Foundation::Image(Box::new(image)));
        }
        let template = self.store().template(organization, name).await?.ok_or_else(unknown)?;
        let image = self.verified(&template.image_name).await?;
        match image.filter(|image| image.digest == template.image) {
            Some(image) => Ok(Foundation::Template(Box::new(template), Box::new(image))),
            None => Err(Error::conflict(
                crate::error::ConflictCode::TemplateOutdated,
                format!("the image below template {name} was replaced; build the template again"),
            )),
        }
    }

    /// The image of this name, if one is installed.
    pub(crate) async fn installed(&self, name: &TemplateName) -> Result<Option<Image>, Error> {
        // What was made of somebody's OCI image is reached by their template alone.
        if name.as_str().starts_with(store::images::built::PREFIX) {
            return Ok(None);
        }
        match name.as_str().parse::<ImageName>() {
            Ok(name) => self.verified(&name).await,
            Err(_) => Ok(None),
        }
    }

    async fn verified(&self, name: &ImageName) -> Result<Option<Image>, Error> {
        match self.images().verified(name).await {
            Ok(image) => Ok(Some(image)),
            Err(ImagesError::NotFound) => Ok(None),
            Err(ImagesError::Refused(source)) => {
                Err(Error::ImageRefused { name: name.clone(), source })
            }
            Err(ImagesError::Unreadable(source)) => Err(Error::Internal { source }),
        }
    }

    /// Removes images that were made of OCI images and that no template needs.
    async fn sweep_images(&self) {
        let swept = async {
            let needed = self.store().template_images().await?;
            let live = self.store().live_sandboxes().await?;
            let used: Vec<_> = live.into_iter().map(|sandbox| sandbox.image).collect();
            self.images().sweep(&needed, &used).await;
            Ok::<_, Error>(())
        };
        if let Err(error) = swept.await {
            // The next deletion tries again.
            tracing::warn!(%error, "images that nobody needs were not looked for");
        }
    }

    /// The key of a snapshot that can be loaded here, now.
    pub(crate) async fn loadable(
        &self,
        snapshot: &SnapshotId,
    ) -> Result<Option<sandbox::backend::Sealed>, Error> {
        let Some(key) = self.store().snapshot_key(snapshot).await? else { return Ok(None) };
        match self.host().loadable(snapshot).await {
            Ok(()) => Ok(Some(sandbox::backend::Sealed { id: snapshot.clone(), key })),
            Err(error) => {
                tracing::debug!(%snapshot, %error, "a snapshot cannot be started from");
                Ok(None)
            }
        }
    }
}
