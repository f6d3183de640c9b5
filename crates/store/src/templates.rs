//! Templates: what was built from a description, and the steps on the way.
//!
//! A row binds a name of an organisation to a snapshot. A step is a snapshot
//! under the key of everything that led to it. Nothing here holds a variable's
//! value: those of a template are in the memory that its snapshot keeps.
//!
//! Every statement names the organisation, so that a key or a name of another
//! one is not found.

use domain::{
    id::{OrganizationId, SandboxId, SnapshotId, TemplateId, UserId},
    image::{ImageName, digest::Digest},
    region::Region,
    size::{Resources, SizeClass},
    template::TemplateName,
    time::Timestamp,
};

use crate::{
    Store,
    audit::{self, AuditLine},
    error::StoreError,
    sql::{Row, values},
};

/// A template as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Names this build of it.
    pub id: TemplateId,
    /// Whose it is.
    pub organization: OrganizationId,
    /// Who built it.
    pub owner: UserId,
    /// Where it is.
    pub region: Region,
    /// What it is called.
    pub name: TemplateName,
    /// What its FROM says.
    pub base: String,
    /// The digest of everything that decided what it is.
    pub key: String,
    /// What sandboxes start from.
    pub snapshot: SnapshotId,
    /// The image below it, exactly.
    pub image: Digest,
    /// What that image is called here.
    pub image_name: ImageName,
    /// The size that was named; absent where numbers were.
    pub size: Option<SizeClass>,
    /// What its sandboxes have.
    pub resources: Resources,
    /// Where steps of a template that starts from it begin.
    pub workdir: String,
    /// Who does them.
    pub account: String,
    /// When it was built first.
    pub created: Timestamp,
    /// When it was built last.
    pub built: Timestamp,
}

/// What a step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateStep {
    /// Whose it is.
    pub organization: OrganizationId,
    /// The digest of everything that led to it.
    pub key: String,
    /// The machine after it.
    pub snapshot: SnapshotId,
    /// The template that used it last.
    pub template: TemplateName,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, organization, owner, region, name, base, build_key, snapshot, image, \
             image_name, size, cpus, memory_mib, disk_mib, processes, workdir, account, created, \
             built FROM templates ",
            $rest
        )
    };
}

impl Store {
    /// Binds a name to what was built. Returns the snapshot that it was bound to
    /// before.
    pub async fn bind_template(
        &self,
        template: &Template,
        line: &AuditLine,
    ) -> Result<Option<SnapshotId>, StoreError> {
        let mut tx = self.begin().await?;
        let before = tx
            .fetch_optional(
                "SELECT snapshot, created FROM templates WHERE organization = $1 AND name = $2",
                values![template.organization.as_str(), template.name.as_str()],
            )
            .await?;
        let created = match &before {
            Some(row) => Timestamp(row.integer("created")?),
            None => template.created,
        };
        tx.execute(
            "DELETE FROM templates WHERE organization = $1 AND name = $2",
            values![template.organization.as_str(), template.name.as_str()],
        )
        .await?;
        tx.execute(
            "INSERT INTO templates (id, organization, owner, region, name, base, build_key, \
             snapshot, image, image_name, size, cpus, memory_mib, disk_mib, processes, workdir, \
             account, created, built) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, \
             $18, $19)",
            values![
                template.id.as_str(),
                template.organization.as_str(),
                template.owner.as_str(),
                template.region.as_str(),
                template.name.as_str(),
                template.base.as_str(),
                template.key.as_str(),
                template.snapshot.as_str(),
                template.image.to_string(),
                template.image_name.as_str(),
                template.size.map(SizeClass::as_str),
                u32::from(template.resources.cpus),
                template.resources.memory_mib,
                template.resources.disk_mib,
                template.resources.processes,
                template.workdir.as_str(),
                template.account.as_str(),
                created,
                template.built,
            ],
        )
        .await?;
        audit::append(&mut tx, line).await?;
        let before = before.map(|row| row.parsed("snapshot")).transpose()?;
        tx.commit().await?;
        Ok(before)
    }

    /// Finds a template.
    pub async fn template(
        &self,
        organization: &OrganizationId,
        name: &TemplateName,
    ) -> Result<Option<Template>, StoreError> {
        let row = self
            .fetch_optional(
                select!("WHERE organization = $1 AND name = $2"),
                values![organization.as_str(), name.as_str()],
            )
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// The templates of an organisation, by name.
    pub async fn templates(
        &self,
        organization: &OrganizationId,
    ) -> Result<Vec<Template>, StoreError> {
        let rows = self
            .fetch_all(
                select!("WHERE organization = $1 ORDER BY name"),
                values![organization.as_str()],
            )
            .await?;
        rows.iter().map(read).collect()
    }

    /// Removes a template and the steps that it used last. Returns their
    /// snapshots, which nothing refers to any more.
    pub async fn remove_template(
        &self,
        organization: &OrganizationId,
        name: &TemplateName,
        line: &AuditLine,
    ) -> Result<Vec<SnapshotId>, StoreError> {
        let mut tx = self.begin().await?;
        let of = || values![organization.as_str(), name.as_str()];
        let mut snapshots = Vec::new();
        let row = tx
            .fetch_optional(
                "DELETE FROM templates WHERE organization = $1 AND name = $2 RETURNING snapshot",
                of(),
            )
            .await?;
        if let Some(row) = row {
            snapshots.push(row.parsed("snapshot")?);
        }
        while let Some(row) = tx
            .fetch_optional(
                "DELETE FROM template_steps WHERE organization = $1 AND step_key IN \
                 (SELECT step_key FROM template_steps WHERE organization = $1 AND template = $2 \
                 LIMIT 1) RETURNING snapshot",
                of(),
            )
            .await?
        {
            snapshots.push(row.parsed("snapshot")?);
        }
        audit::append(&mut tx, line).await?;
        tx.commit().await?;
        Ok(snapshots)
    }

    /// Finds what a step came to, and notes that `template` uses it.
    pub async fn use_template_step(
        &self,
        organization: &OrganizationId,
        key: &str,
        template: &TemplateName,
        now: Timestamp,
    ) -> Result<Option<SnapshotId>, StoreError> {
        let mut tx = self.begin().await?;
        let row = tx
            .fetch_optional(
                "UPDATE template_steps SET template = $3, used = $4 \
                 WHERE organization = $1 AND step_key = $2 RETURNING snapshot",
                values![organization.as_str(), key, template.as_str(), now],
            )
            .await?;
        tx.commit().await?;
        row.map(|row| row.parsed("snapshot")).transpose()
    }

    /// Remembers what a step came to and keeps the `most` that were used last.
    /// Returns the snapshots that nothing refers to any more.
    pub async fn add_template_step(
        &self,
        step: &TemplateStep,
        now: Timestamp,
        most: u32,
    ) -> Result<Vec<SnapshotId>, StoreError> {
        let mut tx = self.begin().await?;
        let organization = step.organization.as_str();
        let mut gone = Vec::new();
        let before = tx
            .fetch_optional(
                "DELETE FROM template_steps WHERE organization = $1 AND step_key = $2 \
                 RETURNING snapshot",
                values![organization, step.key.as_str()],
            )
            .await?;
        if let Some(row) = before {
            gone.push(row.parsed("snapshot")?);
        }
        tx.execute(
            "INSERT INTO template_steps (organization, step_key, snapshot, template, used) \
             VALUES ($1, $2, $3, $4, $5)",
            values![
                organization,
                step.key.as_str(),
                step.snapshot.as_str(),
                step.template.as_str(),
                now,
            ],
        )
        .await?;
        while let Some(row) = tx
            .fetch_optional(
                "DELETE FROM template_steps WHERE organization = $1 AND step_key IN \
                 (SELECT step_key FROM template_steps WHERE organization = $1 \
                 ORDER BY used DESC, step_key LIMIT 1 OFFSET $2) RETURNING snapshot",
                values![organization, most],
            )
            .await?
        {
            gone.push(row.parsed("snapshot")?);
        }
        tx.commit().await?;
        Ok(gone)
    }

    /// Forgets what a step came to, because it cannot be started from any more.
    pub async fn remove_template_step(
        &self,
        organization: &OrganizationId,
        key: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.execute(
            "DELETE FROM template_steps WHERE organization = $1 AND step_key = $2",
            values![organization.as_str(), key],
        )
        .await?;
        tx.commit().await
    }

    /// Every snapshot that a template or a step refers to.
    pub async fn template_snapshots(&self) -> Result<Vec<SnapshotId>, StoreError> {
        let rows = self
            .fetch_all(
                "SELECT snapshot FROM templates UNION SELECT snapshot FROM template_steps",
                Vec::new(),
            )
            .await?;
        rows.iter().map(|row| row.parsed("snapshot")).collect()
    }

    /// Every image that a template starts from, and how it is called.
    pub async fn template_images(&self) -> Result<Vec<ImageName>, StoreError> {
        let rows = self.fetch_all("SELECT DISTINCT image_name FROM templates", Vec::new()).await?;
        rows.iter().map(|row| row.parsed("image_name")).collect()
    }

    /// Notes that a sandbox is there to build in, before there is one.
    pub async fn add_template_build(
        &self,
        sandbox: &SandboxId,
        organization: &OrganizationId,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.execute(
            "INSERT INTO template_builds (sandbox, organization, created) VALUES ($1, $2, $3)",
            values![sandbox.as_str(), organization.as_str(), now],
        )
        .await?;
        tx.commit().await
    }

    /// Notes that nothing is built in it any more.
    pub async fn remove_template_build(&self, sandbox: &SandboxId) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let values = values![sandbox.as_str()];
        tx.execute("DELETE FROM template_builds WHERE sandbox = $1", values).await?;
        tx.commit().await
    }

    /// The sandboxes to build in.
    pub async fn template_builds(&self) -> Result<Vec<SandboxId>, StoreError> {
        let rows = self.fetch_all("SELECT sandbox FROM template_builds", Vec::new()).await?;
        rows.iter().map(|row| row.parsed("sandbox")).collect()
    }
}

fn read(row: &Row) -> Result<Template, StoreError> {
    Ok(Template {
        id: row.parsed("id")?,
        organization: row.parsed("organization")?,
        owner: row.parsed("owner")?,
        region: row.parsed("region")?,
        name: row.parsed("name")?,
        base: row.text("base")?,
        key: row.text("build_key")?,
        snapshot: row.parsed("snapshot")?,
        image: row.parsed("image")?,
        image_name: row.parsed("image_name")?,
        size: row.optional_parsed("size")?,
        resources: Resources {
            cpus: row.number("cpus")?,
            memory_mib: row.number("memory_mib")?,
            disk_mib: row.number("disk_mib")?,
            processes: row.number("processes")?,
        },
        workdir: row.text("workdir")?,
        account: row.text("account")?,
        created: Timestamp(row.integer("created")?),
        built: Timestamp(row.integer("built")?),
    })
}
