//! Volumes of a server.

use std::time::Duration;

use api::{
    client::Client,
    volumes::{Checkpoint, CreateVolume, Mount, Volume},
};
use clap::{Args, Subcommand};
use domain::{
    id::{CheckpointId, SandboxId},
    volume::{MountPath, VolumeName, VolumeRef},
};
use serde::Serialize;
use serde_json::json;

use super::{Configured, Json, block_on};
use crate::{
    error::{Failure, Outcome},
    output::{self, Format},
    progress,
    remote::{Authority, ServerArgs},
};

/// Between two looks at something that is being made.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    Create(CreateArgs),
    List(ListArgs),
    Get(OneArgs),
    Delete(DeleteArgs),
    Attach(AttachArgs),
    Detach(DetachArgs),
    Checkpoint(OneArgs),
    Checkpoints(CheckpointsArgs),
    Forget(ForgetArgs),
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    json: Json,
}

/// Make an empty volume and print its id
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Its name: 1 to 63 characters a-z, 0-9, `.` or `-`
    name: VolumeName,

    /// Its size in MiB
    #[arg(long, value_name = "N", default_value_t = 1024)]
    size_mb: u32,

    #[command(flatten)]
    common: Common,
}

/// List the volumes
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    common: Common,
}

/// Show a volume, or make a checkpoint of one
///
/// A checkpoint holds the volume as it is now; its sandbox, if it has one, runs on.
#[derive(Debug, Args)]
pub(crate) struct OneArgs {
    /// Its name or id
    volume: VolumeRef,

    #[command(flatten)]
    common: Common,
}

/// Delete volumes with their data and all their checkpoints
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Their names or ids
    #[arg(required = true, value_name = "VOLUME")]
    volumes: Vec<VolumeRef>,

    #[command(flatten)]
    common: Common,
}

/// Attach a volume to a running sandbox
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The volume's name or id
    volume: VolumeRef,

    /// The sandbox
    #[arg(value_name = "SANDBOX_ID")]
    sandbox: SandboxId,

    /// Where to mount it
    #[arg(long, value_name = "PATH", default_value_t = MountPath::default())]
    path: MountPath,

    #[command(flatten)]
    common: Common,
}

/// Detach a volume from a running sandbox
///
/// Returns when everything was written. It is refused while something in the
/// sandbox uses the volume.
#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// The volume's name or id
    volume: VolumeRef,

    /// The sandbox
    #[arg(value_name = "SANDBOX_ID")]
    sandbox: SandboxId,

    #[command(flatten)]
    common: Common,
}

/// List the checkpoints of a volume, newest first
#[derive(Debug, Args)]
pub(crate) struct CheckpointsArgs {
    /// The volume's name or id
    volume: VolumeRef,

    #[command(flatten)]
    common: Common,
}

/// Delete checkpoints
#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// Their ids, as `volume checkpoints` shows them
    #[arg(required = true, value_name = "CHECKPOINT_ID")]
    checkpoints: Vec<CheckpointId>,

    #[command(flatten)]
    common: Common,
}

/// Make a volume with the data of a checkpoint and print its id
///
/// Every part of it is checked before the volume can be used.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The checkpoint
    #[arg(value_name = "CHECKPOINT_ID")]
    checkpoint: CheckpointId,

    /// The name of the new volume
    name: VolumeName,

    #[command(flatten)]
    common: Common,
}

impl VolumeCommand {
    fn common(&self) -> &Common {
        match self {
            Self::Create(arguments) => &arguments.common,
            Self::List(arguments) => &arguments.common,
            Self::Get(arguments) | Self::Checkpoint(arguments) => &arguments.common,
            Self::Delete(arguments) => &arguments.common,
            Self::Attach(arguments) => &arguments.common,
            Self::Detach(arguments) => &arguments.common,
            Self::Checkpoints(arguments) => &arguments.common,
            Self::Forget(arguments) => &arguments.common,
            Self::Restore(arguments) => &arguments.common,
        }
    }

    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        self.common().json.format()
    }
}

/// Runs a command on volumes.
pub(crate) fn run(configured: &Configured<'_>, command: VolumeCommand) -> Outcome<u8> {
    let client = command.common().server.client(configured, Authority::Sandboxes)?;
    block_on(obey(client, command))
}

async fn obey(client: Client, command: VolumeCommand) -> Outcome<u8> {
    let format = command.format();
    match command {
        VolumeCommand::Create(arguments) => {
            let create = CreateVolume {
                name: arguments.name.to_string(),
                size_mb: Some(arguments.size_mb),
                ..CreateVolume::default()
            };
            let volume = client.create_volume(&create).await?;
            told(format, &volume, volume.id.as_str())?;
        }
        VolumeCommand::Restore(arguments) => {
            let create = CreateVolume {
                name: arguments.name.to_string(),
                checkpoint: Some(arguments.checkpoint.to_string()),
                ..CreateVolume::default()
            };
            let waiting = progress::waiting("restoring the checkpoint");
            let volume = restored(&client, &create).await;
            waiting.finish_and_clear();
            let volume = volume?;
            told(format, &volume, volume.id.as_str())?;
        }
        VolumeCommand::List(_) => list(format, client.list_volumes().await?)?,
        VolumeCommand::Get(arguments) => {
            let volume = client.volume(&named(&arguments.volume)).await?;
            match format {
                Format::Json => output::json(&volume)?,
                Format::Text => list(format, vec![volume])?,
            }
        }
        VolumeCommand::Delete(arguments) => {
            for volume in &arguments.volumes {
                let name = named(volume);
                client.delete_volume(&name).await?;
                told(format, &json!({ "volume": name, "deleted": true }), &name)?;
            }
        }
        VolumeCommand::Attach(arguments) => {
            let path = Some(arguments.path.to_string());
            let mount = Mount { volume: named(&arguments.volume), path };
            let volume = client.attach_volume(&arguments.sandbox, &mount).await?;
            told(format, &volume, arguments.path.as_str())?;
        }
        VolumeCommand::Detach(arguments) => {
            let name = named(&arguments.volume);
            client.detach_volume(&arguments.sandbox, &name).await?;
            told(format, &json!({ "volume": name, "detached": true }), &name)?;
        }
        VolumeCommand::Checkpoint(arguments) => {
            let waiting = progress::waiting("making a checkpoint");
            let checkpoint = checkpoint(&client, &named(&arguments.volume)).await;
            waiting.finish_and_clear();
            let checkpoint = checkpoint?;
            told(format, &checkpoint, checkpoint.id.as_str())?;
        }
        VolumeCommand::Checkpoints(arguments) => {
            let checkpoints = client.list_checkpoints(&named(&arguments.volume)).await?;
            if format == Format::Json {
                output::json(&checkpoints)?;
                return Ok(0);
            }
            let row = |checkpoint: &Checkpoint| {
                vec![
                    checkpoint.id.to_string(),
                    checkpoint.state.clone(),
                    mib(checkpoint.data_bytes),
                    mib(checkpoint.stored_bytes),
                    checkpoint.created_at.to_string(),
                ]
            };
            let rows: Vec<_> = checkpoints.iter().map(row).collect();
            output::table(&["id", "state", "data", "stored", "created"], &rows)?;
        }
        VolumeCommand::Forget(arguments) => {
            for checkpoint in &arguments.checkpoints {
                client.delete_checkpoint(checkpoint).await?;
                let deleted = json!({ "checkpoint": checkpoint, "deleted": true });
                told(format, &deleted, checkpoint.as_str())?;
            }
        }
    }
    Ok(0)
}

/// Waits until a restored volume is ready or could not be made.
async fn restored(client: &Client, create: &CreateVolume) -> Outcome<Volume> {
    let mut volume = client.create_volume(create).await?;
    while volume.state == "making" {
        tokio::time::sleep(LOOK).await;
        volume = client.volume(volume.id.as_str()).await?;
    }
    match volume.detail {
        None => Ok(volume),
        Some(detail) => Err(Failure::refused(format!("the volume was not restored: {detail}"))
            .hint(format!("`coldframe volume delete {}` removes what is left", volume.name))),
    }
}

/// Waits until a checkpoint is whole or could not be made.
async fn checkpoint(client: &Client, volume: &str) -> Outcome<Checkpoint> {
    let mut checkpoint = client.create_checkpoint(volume).await?;
    while checkpoint.state == "making" {
        tokio::time::sleep(LOOK).await;
        let all = client.list_checkpoints(volume).await?;
        let same = all.into_iter().find(|other| other.id == checkpoint.id);
        checkpoint = same.ok_or_else(|| Failure::refused("the checkpoint was deleted"))?;
    }
    match checkpoint.detail {
        None => Ok(checkpoint),
        Some(detail) => Err(Failure::refused(format!("the checkpoint was not made: {detail}"))),
    }
}

fn list(format: Format, volumes: Vec<Volume>) -> Outcome<()> {
    if format == Format::Json {
        return output::json(&volumes);
    }
    let row = |volume: &Volume| {
        let holder = volume.attachment.as_ref();
        let holder = holder.map(|holder| format!("{} {}", holder.sandbox, holder.path));
        vec![
            volume.name.clone(),
            volume.state.clone(),
            format!("{} MiB", volume.size_mb),
            mib(volume.used_bytes),
            holder.unwrap_or_default(),
            volume.id.to_string(),
        ]
    };
    let rows: Vec<_> = volumes.iter().map(row).collect();
    output::table(&["name", "state", "size", "used", "attached", "id"], &rows)
}

fn told(format: Format, value: &impl Serialize, text: &str) -> Outcome<()> {
    match format {
        Format::Json => output::json(value),
        Format::Text => output::line(text),
    }
}

fn named(volume: &VolumeRef) -> String {
    match volume {
        VolumeRef::Id(id) => id.to_string(),
        VolumeRef::Name(name) => name.to_string(),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1024 * 1024))
}
