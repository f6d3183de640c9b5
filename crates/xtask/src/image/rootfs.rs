//! The root file system: packages unpacked by mmdebstrap, then what the recipe
//! adds, then everything removed that depends on when or where it was built.
//!
//! Modification times are kept up to the newest package's and never exceed it.
//! One fixed time for all files would be simpler, but Python checks a compiled
//! module against the time of its source, and would compile its whole library
//! again at every start.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use super::{
    accounts,
    command::output,
    packages::{Lock, Packages},
    recipe::{Recipe, has_home},
};

/// What tools leave behind that says when or where, or is a copy of another file.
const LEFTOVERS: [&str; 13] = [
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/apt/sources.list",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
    "etc/.pwd.lock",
    "etc/group-",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/shadow-",
    "var/cache/debconf/config.dat-old",
    "var/cache/debconf/templates.dat-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/dpkg/diversions-old",
    "var/lib/dpkg/status-old",
];

/// Directories whose content is made anew in a running sandbox.
const EMPTIED: [&str; 6] = ["dev", "run", "tmp", "var/cache/apt", "var/lib/apt/lists", "var/log"];

/// Unpacks and configures the packages of `lock` into `root`.
pub(crate) fn install(
    recipe: &Recipe,
    packages: &Packages,
    lock: &Lock,
    epoch: u64,
    work: &Path,
) -> anyhow::Result<PathBuf> {
    let source = work.join("packages");
    fs::create_dir_all(&source)?;
    packages.offer(lock, &source)?;
    let root = work.join("root");
    // In a mount namespace of its own: if the build is killed, what it mounted
    // inside the new root is gone with it and cannot be deleted through.
    let mut mmdebstrap = Command::new("unshare");
    mmdebstrap.args(["--mount", "--propagation=private", "mmdebstrap"]);
    mmdebstrap.args(["--mode=root", "--variant=apt", "--format=directory"]);
    mmdebstrap.arg(format!("--architectures={}", recipe.architecture));
    mmdebstrap.arg(format!("--include={}", recipe.packages.join(",")));
    mmdebstrap.args([
        "--aptopt=APT::Install-Recommends \"false\"",
        "--aptopt=APT::Sandbox::User \"root\"",
    ]);
    // The layout that the distribution converts itself to otherwise, slowly and
    // with a package that stays behind.
    mmdebstrap.arg("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr");
    // A build that dies with the machine is begun again; syncing each file
    // would only make it slow.
    mmdebstrap.arg("--dpkgopt=force-unsafe-io");
    for line in path_rules(recipe) {
        mmdebstrap.arg(format!("--dpkgopt={line}"));
    }
    mmdebstrap.arg(&recipe.release).arg(&root);
    // The index was written by us and every file in it was checked by digest.
    mmdebstrap.arg(format!("deb [trusted=yes] copy:{} ./", source.display()));
    output(mmdebstrap.env("SOURCE_DATE_EPOCH", epoch.to_string()))?;
    Ok(root)
}

/// Makes `root` what the recipe declares.
pub(crate) fn finish(recipe: &Recipe, lock: &Lock, epoch: u64, root: &Path) -> anyhow::Result<()> {
    for path in LEFTOVERS {
        let path = root.join(path);
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path)?;
        }
    }
    for directory in EMPTIED {
        empty(&root.join(directory))?;
    }
    accounts::add(root, &recipe.users, &recipe.user, epoch)?;
    let sources = lock.sources.join("\n") + "\n";
    write(root, "/etc/apt/sources.list", 0o644, &sources)?;
    let rules = path_rules(recipe).join("\n") + "\n";
    write(root, "/etc/dpkg/dpkg.cfg.d/coldframe", 0o644, &rules)?;
    for file in &recipe.files {
        write(root, &file.path, file.mode.0, &file.content)?;
    }
    for directory in &recipe.directories {
        let owner = recipe.user(&directory.owner)?.id;
        make_directory(&inside(root, &directory.path), owner, directory.mode.0)?;
    }
    for user in recipe.users.iter().filter(|user| has_home(user)) {
        let home = inside(root, &user.home);
        make_directory(&home, user.id, 0o755)?;
        for entry in fs::read_dir(root.join("etc/skel"))? {
            let entry = entry?;
            let copy = home.join(entry.file_name());
            fs::copy(entry.path(), &copy)?;
            std::os::unix::fs::chown(&copy, Some(user.id), Some(user.id))?;
        }
    }
    take_setuid(recipe, root)
}

/// Packs `root` into a read-only compressed file system.
pub(crate) fn pack(root: &Path, epoch: u64, image: &Path) -> anyhow::Result<()> {
    let mut mkfs = Command::new("mkfs.erofs");
    // Level 12 takes four times as long as 9 and saves a third of a percent;
    // larger clusters save little more and page in more slowly.
    mkfs.args(["-zlz4hc,9", "-C16384", "--preserve-mtime", "--quiet"]);
    // The UUID names nothing; a random one would make every build differ.
    mkfs.args(["-U", "00000000-0000-4000-8000-000000000000"]);
    mkfs.arg(image).arg(root);
    output(mkfs.env("SOURCE_DATE_EPOCH", epoch.to_string())).map(drop)
}

fn path_rules(recipe: &Recipe) -> Vec<String> {
    let exclude = recipe.exclude.iter().map(|path| format!("path-exclude={path}"));
    let include = recipe.include.iter().map(|path| format!("path-include={path}"));
    exclude.chain(include).collect()
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn write(root: &Path, path: &str, mode: u32, content: &str) -> anyhow::Result<()> {
    let path = inside(root, path);
    let what = || format!("{} could not be written", path.display());
    // A package may have left a link here, and it must not be followed.
    if path.symlink_metadata().is_ok() {
        fs::remove_file(&path).with_context(what)?;
    }
    fs::write(&path, content).with_context(what)?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
}

fn make_directory(path: &Path, owner: u32, mode: u32) -> anyhow::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(std::os::unix::fs::chown(path, Some(owner), Some(owner))?)
}

fn empty(directory: &Path) -> anyhow::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Takes the setuid and setgid bits from every file that is not declared, and
/// refuses a declaration of a file that has none.
fn take_setuid(recipe: &Recipe, root: &Path) -> anyhow::Result<()> {
    let mut missing = recipe.setuid.clone();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let metadata = path.symlink_metadata()?;
            if metadata.is_dir() {
                directories.push(path);
            } else if metadata.is_file() && metadata.mode() & 0o6000 != 0 {
                let name = format!("/{}", path.strip_prefix(root)?.display());
                if !missing.remove(&name) {
                    let mode = metadata.mode() & 0o1777;
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                }
            }
        }
    }
    anyhow::ensure!(missing.is_empty(), "these files are declared setuid and are not: {missing:?}");
    Ok(())
}
