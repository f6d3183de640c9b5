//! What a COPY brings: from the context to paths in the sandbox, as a tar file.
//!
//! A pure function says which entry goes where; the digest of all that it names
//! decides whether the step was done before. Times do not count.

use std::{
    io::{self, Write},
    path::Path,
};

use domain::image::digest::Digest;
use store::archive::context::{Context, Entry, What};
use tar::{Builder, EntryType, Header};

/// One entry and its place in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// In the context.
    from: String,
    /// In the sandbox, absolute.
    to: String,
    entry: Entry,
}

/// Everything that one COPY brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) items: Vec<Item>,
    /// The folder that is there afterwards, whatever was in the sources.
    pub(super) folder: Option<String>,
}

/// `path` from `folder`, in one spelling: absolute, without `.` and `..`.
pub(super) fn resolve(folder: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{folder}/{path}") };
    let mut parts = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Decides what goes where.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn load(
    context: &Context,
    sources: &[String],
    destination: &str,
    workdir: &str,
) -> Result<Load, String> {
    let target = resolve(workdir, destination);
    let into_folder = destination.ends_with(['/', '.']) || sources.len() > 1;
    let within = |name: &str| {
        if target == "/" { format!("/{name}") } else { format!("{target}/{name}") }
    };
    let (mut items, mut folder) = (Vec::new(), into_folder.then(|| target.clone()));
    for source in sources {
        let path = relative(source).ok_or_else(|| format!("{source:?} is outside the context"))?;
        let entry = context.get(&path);
        let mut below = context.below(&path).peekable();
        match entry {
            Some(entry @ Entry { what: What::File { .. } | What::Link(_), .. }) => {
                let name = path.rsplit('/').next().unwrap_or(&path);
                let to = if into_folder { within(name) } else { target.clone() };
                items.push(Item { from: path.clone(), to, entry: entry.clone() });
            }
            Some(Entry { what: What::Folder, .. }) | None
                if entry.is_some() || below.peek().is_some() || path.is_empty() =>
            {
                // A folder stands for what is in it.
                folder = Some(target.clone());
                let skip = if path.is_empty() { 0 } else { path.len() + 1 };
                items.extend(below.map(|(from, entry)| Item {
                    from: from.to_owned(),
                    to: within(&from[skip..]),
                    entry: entry.clone(),
                }));
            }
            _ => return Err(format!("{source:?} is not in the context")),
        }
    }
    Ok(Load { items, folder })
}

/// A path of the context, or nothing if it leaves it.
fn relative(path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.contains(&"..")).then(|| parts.join("/"))
}

impl Load {
    /// The digest of all that is brought: names, kinds, modes and contents.
    pub(super) fn digest(&self, context: &Context) -> io::Result<Digest> {
        let mut told = format!("{:?}\n", self.folder);
        for Item { from, to, entry } in &self.items {
            let content = match &entry.what {
                What::File { .. } => {
                    let mut content = context.open(from).ok_or(io::ErrorKind::NotFound)?;
                    digest(&mut content)?.to_string()
                }
                What::Folder => "folder".to_owned(),
                What::Link(target) => format!("link {target:?}"),
            };
            told.push_str(&format!("{to:?} {:o} {content}\n", entry.mode));
        }
        Ok(Digest::of(told.as_bytes()))
    }

    /// Writes it as a tar file to be unpacked at the root.
    pub(super) fn write(
        &self,
        context: &Context,
        (uid, gid): (u32, u32),
        to: impl Write,
    ) -> io::Result<()> {
        let mut builder = Builder::new(to);
        for item in &self.items {
            let mut header = Header::new_gnu();
            header.set_mode(item.entry.mode);
            header.set_mtime(item.entry.modified);
            header.set_uid(uid.into());
            header.set_gid(gid.into());
            header.set_size(0);
            let name = Path::new(item.to.trim_start_matches('/'));
            match &item.entry.what {
                What::File { size, .. } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(*size);
                    let content = context.open(&item.from).ok_or(io::ErrorKind::NotFound)?;
                    builder.append_data(&mut header, name, content)?;
                }
                What::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    builder.append_data(&mut header, name, io::empty())?;
                }
                What::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    builder.append_link(&mut header, name, target)?;
                }
            }
        }
        builder.into_inner()?.flush()
    }
}

fn digest(content: &mut impl io::Read) -> io::Result<Digest> {
    let mut hasher = <sha2::Sha256 as sha2::Digest>::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let n_read = content.read(&mut buffer)?;
        if n_read == 0 {
            return Ok(Digest::from_bytes(sha2::Digest::finalize(hasher).into()));
        }
        sha2::Digest::update(&mut hasher, &buffer[..n_read]);
    }
}

#[cfg(test)]
mod tests {
    use store::archive::context::Section;

    use super::*;

    fn context(files: &[(&str, &str)]) -> Context {
        let mut builder = Builder::new(tempfile::tempfile().expect("a file"));
        for (name, content) in files {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o640);
            builder.append_data(&mut header, name, content.as_bytes()).expect("appended");
        }
        let file = builder.into_inner().expect("a tar file");
        Context::read(Section::whole(file).expect("a length")).expect("a context")
    }

    fn places(context: &Context, sources: &[&str], destination: &str) -> Vec<String> {
        let sources: Vec<_> = sources.iter().map(|source| (*source).to_owned()).collect();
        let load = load(context, &sources, destination, "/srv").expect("it goes somewhere");
        load.items.into_iter().map(|item| item.to).collect()
    }

    /// U38: files go where a Dockerfile's would.
    #[test]
    fn files_go_where_they_are_expected() {
        let context = context(&[("a", "1"), ("app/b", "2"), ("app/sub/c", "3")]);
        for (sources, destination, expected) in [
            (&["a"][..], "/etc/x", &["/etc/x"][..]),
            (&["a"], "/etc/", &["/etc/a"]),
            (&["./a"], "x", &["/srv/x"]),
            (&["a"], ".", &["/srv/a"]),
            (&["a"], "../x/./y", &["/x/y"]),
            (&["app"], "/opt", &["/opt/b", "/opt/sub/c"]),
            (&["app/"], "/", &["/b", "/sub/c"]),
            (&["app/sub", "a"], "/opt", &["/opt/c", "/opt/a"]),
            (&["."], "/opt", &["/opt/a", "/opt/app/b", "/opt/app/sub/c"]),
        ] {
            assert_eq!(places(&context, sources, destination), expected, "{sources:?}");
        }
        for source in ["b", "../a", "app/../../a"] {
            assert!(load(&context, &[source.to_owned()], "/", "/").is_err(), "{source}");
        }
    }

    /// U38: a step is repeated when what it copies changed, and only then.
    #[test]
    fn the_digest_is_that_of_what_is_copied() {
        let of = |files: &[(&str, &str)]| {
            let context = context(files);
            let load = load(&context, &["app".to_owned()], "/opt", "/").expect("a load");
            load.digest(&context).expect("read")
        };
        let first = of(&[("app/a", "1"), ("other", "1")]);
        assert_eq!(first, of(&[("other", "2"), ("app/a", "1")]));
        assert_ne!(first, of(&[("app/a", "2"), ("other", "1")]));
        assert_ne!(first, of(&[("app/b", "1"), ("other", "1")]));
        assert_ne!(first, of(&[("app/a", "1"), ("app/b", "")]));
    }
}
