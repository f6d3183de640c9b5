//! The documents of an OCI image, as far as they are read.
//!
//! Docker's own forms of them have the same fields. What is not listed here is
//! not looked at.

use std::collections::BTreeMap;

use domain::image::digest::Digest;
use serde::Deserialize;

/// The largest document that is read.
pub(super) const MAX_DOCUMENT: u64 = 4 << 20;
/// The most layers of an image.
pub(super) const MAX_LAYERS: usize = 256;
/// The name of an image in a layout.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The name that newer archives of Docker give an image in a layout.
const IMAGE_NAME: &str = "io.containerd.image.name";

/// A blob by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

/// A manifest or a list of them; which one, the fields say.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Document {
    Index { manifests: Vec<Descriptor> },
    Manifest { config: Descriptor, layers: Vec<Descriptor> },
}

/// The configuration of an image.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Config {
    pub(super) os: String,
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) config: Option<Process>,
    pub(super) rootfs: Rootfs,
}

/// How its programs are run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Process {
    #[serde(default)]
    pub(super) env: Option<Vec<String>>,
    #[serde(default)]
    pub(super) user: Option<String>,
    #[serde(default)]
    pub(super) working_dir: Option<String>,
}

/// What its layers are when they are not compressed.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Rootfs {
    pub(super) diff_ids: Vec<Digest>,
}

/// One image of an archive of `docker save`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Saved {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

/// The image that `reference` names among `manifests`, for this machine.
pub(super) fn choose(
    manifests: &[Descriptor],
    reference: Option<&str>,
) -> Result<Descriptor, String> {
    let named = |descriptor: &&Descriptor| match reference {
        None => true,
        Some(reference) => [REF_NAME, IMAGE_NAME].iter().any(|key| {
            descriptor
                .annotations
                .get(*key)
                .is_some_and(|name| name == reference || name.rsplit('/').next() == Some(reference))
        }),
    };
    let ours = |descriptor: &&Descriptor| {
        descriptor
            .platform
            .as_ref()
            .is_none_or(|platform| platform.os == "linux" && platform.architecture == "amd64")
    };
    let found: Vec<_> = manifests.iter().filter(named).filter(ours).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(match reference {
            Some(reference) => format!("it holds no image {reference:?} for linux/amd64"),
            None => "it holds no image for linux/amd64".to_owned(),
        }),
        [first, ..] => {
            let same = found.iter().all(|other| other.digest == first.digest);
            if same {
                Ok((*first).clone())
            } else {
                Err("it holds several images; name one with :REF".to_owned())
            }
        }
    }
}
