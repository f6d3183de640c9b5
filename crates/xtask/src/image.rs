//! `cargo xtask image`: the only way an image comes to be (S6, S7).
//!
//! ```text
//!  images/base.toml ──► choice of packages (lock) ──► package files
//!                                                         │
//!        manifest + signature ◄── vmlinuz, modules.cpio, rootfs.erofs
//! ```
//!
//! The image is a function of the recipe, the package files and the tools: two
//! builds give the same bytes, which `--check-reproducible` tests. What decides
//! the content is recorded in the manifest, and an installed image whose record
//! matches is not built again.
//!
//! Deliberately absent: checking an image for use and importing one, which the
//! installed program does and not the repository's tasks.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use domain::image::{ImageFile, MANIFEST, MANIFEST_FORMAT, Manifest, SIGNATURE, digest::Digest};
use rustix::fs::{FlockOperation, flock};

use crate::{
    progress::{Progress, shown},
    workspace,
};

mod accounts;
mod command;
mod cpio;
mod kernel;
mod packages;
mod publish;
mod recipe;
mod registries;
mod rootfs;
mod signing;

use packages::{Lock, Packages};
use publish::Images;
use recipe::Recipe;
use signing::Signing;

/// Build the base image that sandboxes start from
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Build the image declared in images/base.toml, if it is not built yet
    Build(BuildArgs),
}

/// Where to build, and from what.
#[derive(Debug, Args)]
struct BuildArgs {
    /// The folder of images to put it into [default: ~/.local/share/coldframe/images]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Use only packages that were fetched before
    #[arg(long, conflicts_with = "update")]
    offline: bool,

    /// Choose the newest packages, rather than those chosen before
    #[arg(long)]
    update: bool,

    /// Build twice from the same packages and fail if a byte differs
    #[arg(long)]
    check_reproducible: bool,
}

/// The files that decide, besides the recipe and the packages, what is in an
/// image. A change to one of them makes another image.
const BUILDER: [&str; 5] = [
    include_str!("image/accounts.rs"),
    include_str!("image/cpio.rs"),
    include_str!("image/kernel.rs"),
    include_str!("image/registries.rs"),
    include_str!("image/rootfs.rs"),
];

/// The steps before the first file is made.
const GET: [&str; 2] = ["choose packages", "fetch packages"];

/// The steps of [`make`].
const MAKE: [&str; 4] = [
    "unpack the kernel",
    "install packages",
    "add accounts and files",
    "pack the root file system",
];

/// Runs `cargo xtask image`.
pub(crate) fn run(arguments: ImageArgs) -> anyhow::Result<()> {
    let ImageCommand::Build(arguments) = arguments.command;
    build(&arguments)
}

fn build(arguments: &BuildArgs) -> anyhow::Result<()> {
    command::check_machine()?;
    let declaration = workspace::root().join("images/base.toml");
    let text = fs::read_to_string(&declaration)?;
    let recipe = Recipe::parse(&text).with_context(|| format!("in {}", declaration.display()))?;

    let (cache, installed) = (workspace::cache()?, workspace::images()?);
    let packages = Packages::open(cache.join("packages"))?;
    let _alone = alone(&cache)?;
    let key = Signing::open(&installed.with_file_name("signing"))?;
    let images = Images::open(arguments.out.clone().unwrap_or(installed))?;
    images.pin(&key)?;

    let locked = if arguments.update { None } else { packages.locked(&recipe)? };
    if let (Some(lock), false) = (&locked, arguments.check_reproducible) {
        let wanted = (recipe_digest(&text, lock)?, lock.inputs(), tools()?);
        if let Some((digest, manifest)) = images.installed(&recipe.name, &key)
            && (manifest.recipe, manifest.inputs, manifest.tools) == wanted
        {
            println!("{} {digest} is up to date", images.path(&recipe.name).display());
            return Ok(());
        }
    }

    let began = Instant::now();
    let builds = if arguments.check_reproducible { 2 } else { 1 };
    let mut progress = Progress::new("image", &[GET.as_slice(), &MAKE.repeat(builds)].concat());
    let lock = progress.step(|| match locked {
        Some(lock) => Ok(lock),
        None if arguments.offline => {
            bail!("no packages were chosen for this recipe yet; run once without --offline")
        }
        None => packages.choose(&recipe),
    })?;
    let missing = packages.missing(&lock);
    progress.step(|| {
        ensure!(!arguments.offline || missing.is_empty(), "run once without --offline");
        let total = missing.len();
        packages.fetch(&recipe, &missing, |done| println!("    {done} of {total}"))?;
        packages.verify(&lock)
    })?;
    let epoch = packages.newest(&lock)?;

    let one = Work::new(cache.join("work/one"))?;
    let bytes = make(&recipe, &text, &packages, &lock, epoch, &one.0, &mut progress)?;
    if arguments.check_reproducible {
        let two = Work::new(cache.join("work/two"))?;
        let again = make(&recipe, &text, &packages, &lock, epoch, &two.0, &mut progress)?;
        compare(&one.0, &bytes, &two.0, &again)?;
        println!("both builds gave {}", Digest::of(&bytes));
    }
    fs::write(one.0.join(MANIFEST), &bytes)?;
    fs::write(one.0.join(SIGNATURE), key.sign(&bytes))?;
    // The same image again is no reason to disturb who runs from it.
    let before = images.installed(&recipe.name, &key).map(|(digest, _)| digest);
    if before != Some(Digest::of(&bytes)) {
        images.replace(&recipe.name, &one.0)?;
    }
    let rootfs = fs::metadata(one.0.join(ImageFile::Rootfs.name()))?.len();
    println!(
        "{} {} is ready: {} packages, root file system {} MiB, made in {}",
        images.path(&recipe.name).display(),
        Digest::of(&bytes),
        lock.inputs().len(),
        rootfs >> 20,
        shown(began.elapsed()),
    );
    Ok(())
}

/// Makes the files of an image in `work` and returns the manifest's bytes.
fn make(
    recipe: &Recipe,
    text: &str,
    packages: &Packages,
    lock: &Lock,
    epoch: u64,
    work: &Path,
    progress: &mut Progress,
) -> anyhow::Result<Vec<u8>> {
    let kernel = progress.step(|| {
        let package = packages.path(&lock.kernel);
        let kernel = kernel::unpack(&package, &recipe.kernel.modules, epoch, work)?;
        fs::copy(&kernel.vmlinuz, work.join(ImageFile::Kernel.name()))?;
        fs::write(work.join(ImageFile::Modules.name()), &kernel.modules)?;
        Ok(kernel)
    })?;
    let root = progress.step(|| rootfs::install(recipe, packages, lock, epoch, work))?;
    let egress_registries = progress.step(|| {
        rootfs::finish(recipe, lock, epoch, &root)?;
        registries::of(&root)
    })?;
    progress.step(|| rootfs::pack(&root, epoch, &work.join(ImageFile::Rootfs.name())))?;
    let manifest = Manifest {
        format: MANIFEST_FORMAT,
        name: recipe.name.clone(),
        release: recipe.release.clone(),
        egress_registries,
        facts: recipe.facts(&kernel.release),
        kernel_release: kernel.release,
        source_date_epoch: epoch,
        recipe: recipe_digest(text, lock)?,
        tools: tools()?,
        user: recipe.user.clone(),
        environment: recipe.environment.clone(),
        files: publish::describe(work)?,
        inputs: lock.inputs(),
    };
    let mut bytes = serde_json::to_vec_pretty(&manifest)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Fails if two builds differ, and says in which files.
fn compare(one: &Path, bytes: &[u8], two: &Path, again: &[u8]) -> anyhow::Result<()> {
    if bytes == again {
        return Ok(());
    }
    let mut diff = Command::new("diff");
    diff.args(["--recursive", "--brief", "--no-dereference"]);
    let diff = diff.arg(one.join("root")).arg(two.join("root")).output()?;
    let differing = String::from_utf8_lossy(&diff.stdout).into_owned();
    bail!("two builds from the same packages differ:\n{differing}")
}

/// The digest of everything that decides the content apart from the packages.
fn recipe_digest(text: &str, lock: &Lock) -> anyhow::Result<Digest> {
    Ok(Digest::of(&serde_json::to_vec(&(text, BUILDER, &lock.sources))?))
}

fn tools() -> anyhow::Result<BTreeMap<String, String>> {
    let tool =
        |name: &str, argument| anyhow::Ok((name.to_owned(), command::version(name, argument)?));
    Ok([tool("mmdebstrap", "--version")?, tool("mkfs.erofs", "-V")?].into())
}

/// Keeps a second build from using the same work folders until it is dropped.
fn alone(cache: &Path) -> anyhow::Result<fs::File> {
    let lock = fs::File::create(cache.join("image.lock"))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        println!("waiting for another build to end");
        flock(&lock, FlockOperation::LockExclusive)?;
    }
    Ok(lock)
}

/// A folder that is empty at first and gone in the end.
struct Work(PathBuf);

impl Work {
    fn new(path: PathBuf) -> anyhow::Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the next build begins.
        drop(fs::remove_dir_all(&self.0));
    }
}
