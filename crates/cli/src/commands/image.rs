//! Images of this machine.

mod verify;

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use domain::image::{Image, ImageFile, ImageName};
use indicatif::ProgressBar;
use store::images::{ImageError, ImageStore};

use super::{Configured, Json, Places};
use crate::{
    error::{Failure, Kind, Outcome, chain},
    output::{self, Format},
    progress,
};

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    List(ListArgs),
    Verify(verify::VerifyArgs),
    Import(ImportArgs),
    Export(ExportArgs),
}

/// List the images of this machine
///
/// An image that is not ready was altered, or signed by a key that is not
/// trusted here; no sandbox starts from it.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    json: Json,
}

/// Bring in an image from a release archive
///
/// The archive's signature is checked against the keys that are trusted here,
/// and every file against the signed manifest, before anything is replaced. An
/// image that a running sandbox or server uses is not replaced.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The archive, or `-` for standard input
    file: PathBuf,

    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    json: Json,
}

/// Write an image as a release archive
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The image
    name: ImageName,

    /// The archive to write
    file: PathBuf,

    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    json: Json,
}

impl ImageCommand {
    /// How results are shown.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::List(arguments) => arguments.json.format(),
            Self::Verify(arguments) => arguments.json.format(),
            Self::Import(arguments) => arguments.json.format(),
            Self::Export(arguments) => arguments.json.format(),
        }
    }
}

/// Runs a command on images.
pub(crate) fn run(configured: &Configured<'_>, command: ImageCommand) -> Outcome<u8> {
    match command {
        ImageCommand::List(arguments) => list(configured, &arguments),
        ImageCommand::Verify(arguments) => verify::run(configured, &arguments),
        ImageCommand::Import(arguments) => import(configured, &arguments),
        ImageCommand::Export(arguments) => export(configured, &arguments),
    }
}

fn list(configured: &Configured<'_>, arguments: &ListArgs) -> Outcome<u8> {
    let images = open(configured, &arguments.places)?.list().map_err(failure)?;
    let mut rows = Vec::new();
    for listed in &images {
        match (arguments.json.format(), &listed.image) {
            (Format::Json, Ok(image)) => output::json(&summary(image))?,
            (Format::Json, Err(error)) => output::json(&serde_json::json!({
                "name": listed.name, "ready": false, "reason": chain(error),
            }))?,
            (Format::Text, Ok(image)) => rows.push(vec![
                listed.name.to_string(),
                "ready".to_owned(),
                image.manifest.release.clone(),
                format!("{} MiB", size(image) >> 20),
                image.digest.to_string(),
            ]),
            (Format::Text, Err(error)) => rows.push(vec![
                listed.name.to_string(),
                "refused".to_owned(),
                String::new(),
                String::new(),
                chain(error),
            ]),
        }
    }
    if arguments.json.format() == Format::Text {
        if images.is_empty() {
            output::note("there is no image here; `coldframe image import FILE` brings one in");
        }
        output::table(&["name", "state", "release", "size", "digest"], &rows)?;
    }
    Ok(0)
}

fn import(configured: &Configured<'_>, arguments: &ImportArgs) -> Outcome<u8> {
    let store = open(configured, &arguments.places)?;
    let shown = arguments.file.display();
    let image = if arguments.file.as_os_str() == "-" {
        let bar = progress::bytes("reading", None);
        store.import(Counted { inner: io::stdin().lock(), bar })
    } else {
        let unreadable = |error| Failure::usage(format!("{shown} cannot be read: {error}"));
        let file = File::open(&arguments.file).map_err(unreadable)?;
        let bar = progress::bytes("reading", file.metadata().ok().map(|data| data.len()));
        store.import(Counted { inner: BufReader::new(file), bar })
    };
    let image = image.map_err(|error| match error {
        ImageError::NotAnArchive => Failure::refused(format!("{shown} is {error}")),
        error => failure(error),
    });
    show(&image?, arguments.json.format())
}

fn export(configured: &Configured<'_>, arguments: &ExportArgs) -> Outcome<u8> {
    let store = open(configured, &arguments.places)?;
    let image = store.get(&arguments.name).map_err(failure)?;
    let shown = arguments.file.display();
    let unwritable = |error| Failure::usage(format!("{shown} cannot be written: {error}"));
    let file = File::create_new(&arguments.file).map_err(unwritable)?;
    let waiting = progress::waiting("writing the archive");
    let exported = store.export(&arguments.name, &file).map_err(failure);
    let exported = exported.and_then(|()| file.sync_all().map_err(unwritable));
    waiting.finish_and_clear();
    if exported.is_err() {
        // Half an archive helps nobody; that it could not be written is told.
        drop(std::fs::remove_file(&arguments.file));
    }
    exported?;
    show(&image, arguments.json.format())
}

/// The images that the configuration names.
fn open(configured: &Configured<'_>, places: &Places) -> Outcome<ImageStore> {
    let config = configured.load(&places.overrides())?;
    ImageStore::open(config.images()).map_err(failure)
}

fn show(image: &Image, format: Format) -> Outcome<u8> {
    match format {
        Format::Json => output::json(&summary(image))?,
        Format::Text => output::line(&format!("{}\t{}", image.name, image.digest))?,
    }
    Ok(0)
}

fn summary(image: &Image) -> serde_json::Value {
    serde_json::json!({
        "name": image.name,
        "ready": true,
        "digest": image.digest,
        "release": image.manifest.release,
        "kernel_release": image.manifest.kernel_release,
        "size_bytes": size(image),
    })
}

fn size(image: &Image) -> u64 {
    ImageFile::ALL.iter().map(|file| image.manifest.files.entry(*file).size).sum()
}

/// What an image error means for whoever started us.
pub(crate) fn failure(error: ImageError) -> Failure {
    let kind = match &error {
        // A fresh machine has no folder of images yet.
        ImageError::Io { source, .. } if source.kind() != io::ErrorKind::NotFound => Kind::Internal,
        _ => Kind::Refused,
    };
    let failure = Failure::new(kind, chain(&error));
    match error {
        ImageError::NotFound { .. } | ImageError::NoTrustedKey { .. } | ImageError::Io { .. } => {
            failure.hint("`coldframe doctor` says where images are looked for")
        }
        _ => failure,
    }
}

/// Shows how far reading has come.
struct Counted<R> {
    inner: R,
    bar: ProgressBar,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_read = self.inner.read(buffer)?;
        self.bar.inc(n_read as u64);
        if n_read == 0 {
            self.bar.finish_and_clear();
        }
        Ok(n_read)
    }
}
