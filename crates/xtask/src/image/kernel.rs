//! The kernel and those of its modules that a sandbox needs.
//!
//! The distribution's package is unpacked, never installed. Modules are listed
//! by the recipe; what they depend on, as each module says itself, comes before
//! them. They are stored uncompressed, because the guest's init hands them to
//! the kernel as they are.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::{command::output, cpio::Cpio};

/// The list of modules in the archive, in the order to load them.
const ORDER: &str = "modules.order.coldframe";

/// A kernel on disk and in memory.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// What `uname -r` prints.
    pub release: String,
    pub vmlinuz: PathBuf,
    /// The module archive.
    pub modules: Vec<u8>,
}

/// Unpacks `package` below `work` and packs the modules named in `wanted`.
pub(crate) fn unpack(
    package: &Path,
    wanted: &[String],
    epoch: u64,
    work: &Path,
) -> anyhow::Result<Kernel> {
    let unpacked = work.join("kernel");
    output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&unpacked))?;
    let release = only_entry(&unpacked.join("lib/modules"))?;
    let vmlinuz = unpacked.join("boot").join(format!("vmlinuz-{release}"));
    ensure!(vmlinuz.exists(), "the kernel package has no {}", vmlinuz.display());
    let mut modules = Modules { files: BTreeMap::new(), loaded: Vec::new() };
    find_modules(&unpacked.join("lib/modules").join(&release), &mut modules.files)?;
    for name in wanted {
        modules.load(name)?;
    }
    let modules = modules.archive(epoch)?;
    Ok(Kernel { release, vmlinuz, modules })
}

#[derive(Debug)]
struct Modules {
    files: BTreeMap<String, PathBuf>,
    loaded: Vec<(String, Vec<u8>)>,
}

impl Modules {
    fn load(&mut self, name: &str) -> anyhow::Result<()> {
        if self.loaded.iter().any(|(loaded, _)| loaded == name) {
            return Ok(());
        }
        let path = self.files.get(name);
        let path = path.with_context(|| format!("this kernel has no module {name}"))?;
        let module = output(Command::new("xz").args(["--decompress", "--stdout"]).arg(path))?;
        for dependency in dependencies(&module).with_context(|| format!("in module {name}"))? {
            self.load(&dependency)?;
        }
        self.loaded.push((name.to_owned(), module));
        Ok(())
    }

    fn archive(&self, epoch: u64) -> anyhow::Result<Vec<u8>> {
        let mut archive = Cpio::new(u32::try_from(epoch)?);
        let mut order = String::new();
        archive.directory("modules");
        for (name, module) in &self.loaded {
            let path = format!("modules/{name}.ko");
            archive.file(&path, module);
            order.push_str(&format!("/{path}\n"));
        }
        archive.file(ORDER, order.as_bytes());
        Ok(archive.finish())
    }
}

/// The modules that `module` says it needs loaded first.
fn dependencies(module: &[u8]) -> anyhow::Result<Vec<String>> {
    const KEY: &[u8] = b"depends=";
    let mut found = module.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY);
    let (at, _) = found.next().context("it does not say what it depends on")?;
    ensure!(found.next().is_none(), "it says twice what it depends on");
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = std::str::from_utf8(value)?.split(',').filter(|name| !name.is_empty());
    Ok(names.map(|name| name.replace('-', "_")).collect())
}

fn find_modules(directory: &Path, found: &mut BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find_modules(&entry.path(), found)?;
        } else if let Some(name) = entry.file_name().to_string_lossy().strip_suffix(".ko.xz") {
            found.insert(name.replace('-', "_"), entry.path());
        }
    }
    Ok(())
}

fn only_entry(directory: &Path) -> anyhow::Result<String> {
    let mut names = fs::read_dir(directory)?;
    let (Some(first), None) = (names.next(), names.next()) else {
        anyhow::bail!("{} does not hold exactly one kernel", directory.display());
    };
    Ok(first?.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_what_must_be_loaded_before_it() {
        let module = b"\x7fELF\0license=GPL\0depends=nf-conntrack,nf_nat\0name=x\0";
        assert_eq!(dependencies(module).expect("readable"), ["nf_conntrack", "nf_nat"]);
        assert!(dependencies(b"\0depends=\0").expect("readable").is_empty());
        assert!(dependencies(b"\0name=x\0").is_err());
    }
}
