//! Templates of a server.

mod build;
mod pack;

use api::templates::Template;
use clap::{Args, Subcommand};
use domain::template::TemplateName;

use super::{Configured, Json, block_on};
use crate::{
    error::Outcome,
    output::{self, Format},
    remote::{Authority, ServerArgs},
};

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    Build(build::BuildArgs),
    List(ListArgs),
    Get(GetArgs),
    Delete(DeleteArgs),
}

/// List the templates that were built
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Show a template
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Its name
    name: TemplateName,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Delete templates, and the steps that only they used
///
/// Sandboxes that were started from them run on.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<TemplateName>,

    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

impl TemplateCommand {
    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Build(arguments) => arguments.json.format(),
            Self::List(arguments) => arguments.json.format(),
            Self::Get(arguments) => arguments.json.format(),
            Self::Delete(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on templates.
pub(crate) fn run(configured: &Configured<'_>, command: TemplateCommand) -> Outcome<u8> {
    match command {
        TemplateCommand::Build(arguments) => block_on(build::run(configured, &arguments)),
        TemplateCommand::List(arguments) => block_on(list(configured, &arguments)),
        TemplateCommand::Get(arguments) => block_on(get(configured, &arguments)),
        TemplateCommand::Delete(arguments) => block_on(delete(configured, &arguments)),
    }
}

async fn list(configured: &Configured<'_>, arguments: &ListArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let templates = client.list_templates().await?;
    if arguments.json.format() == Format::Json {
        output::json(&templates)?;
        return Ok(0);
    }
    let row = |template: &Template| {
        vec![
            template.name.clone(),
            template.base.clone(),
            template
                .size
                .clone()
                .unwrap_or_else(|| format!("{} cpus, {} MiB", template.cpus, template.memory_mb)),
            template.built_at.to_string(),
        ]
    };
    let rows: Vec<_> = templates.iter().map(row).collect();
    output::table(&["name", "base", "size", "built"], &rows)?;
    Ok(0)
}

async fn get(configured: &Configured<'_>, arguments: &GetArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    let template = client.template(arguments.name.as_str()).await?;
    if arguments.json.format() == Format::Json {
        output::json(&template)?;
        return Ok(0);
    }
    for (name, value) in [
        ("name", template.name),
        ("id", template.id.to_string()),
        ("base", template.base),
        ("image", template.image_digest),
        ("cpus", template.cpus.to_string()),
        ("memory", format!("{} MiB", template.memory_mb)),
        ("created", template.created_at.to_string()),
        ("built", template.built_at.to_string()),
    ] {
        output::line(&format!("{name}\t{value}"))?;
    }
    Ok(0)
}

async fn delete(configured: &Configured<'_>, arguments: &DeleteArgs) -> Outcome<u8> {
    let client = arguments.server.client(configured, Authority::Sandboxes)?;
    for name in &arguments.names {
        client.delete_template(name.as_str()).await?;
        match arguments.json.format() {
            Format::Json => output::json(&serde_json::json!({ "name": name, "deleted": true }))?,
            Format::Text => output::line(name.as_str())?,
        }
    }
    Ok(0)
}
