//! One instruction after the other into a description.

use super::{
    Action, Base, Command, Copy, Description, MAX_STEPS, Place, Ready, Reference, Step, Text, When,
    lines::Line, words::words,
};
use crate::image::digest::Digest;

/// How long a template may take to be ready unless it says otherwise.
const READY_SECONDS: u32 = 60;
/// The longest that it may say.
const MAX_READY_SECONDS: u32 = 600;

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Draft {
    from: Option<Base>,
    /// Whether a FROM was tried; one that is wrong is told once.
    begun: bool,
    steps: Vec<Step>,
    start: Option<Command>,
    ready: Option<Ready>,
}

type Outcome<T> = Result<T, String>;

impl Draft {
    /// Reads one instruction.
    pub(super) fn take(&mut self, line: &Line) -> Outcome<()> {
        let rest = line.rest.as_str();
        if line.keyword != "FROM" && !self.begun {
            self.begun = true;
            return Err(match line.keyword.as_str() {
                "ARG" => refused("ARG"),
                _ => "a description begins with FROM, such as: FROM base".to_owned(),
            });
        }
        let action = match line.keyword.as_str() {
            "FROM" if self.begun => {
                return Err(
                    "there is one FROM; build what the other stage makes as a template of \
                            its own and start from that"
                        .to_owned(),
                );
            }
            "FROM" => {
                self.begun = true;
                self.from = Some(base(rest)?);
                return Ok(());
            }
            "START" => {
                self.settled()?;
                self.start = Some(command("START", rest)?);
                return Ok(());
            }
            "READY" => {
                if self.ready.is_some() {
                    return Err("there is one READY; remove the other".to_owned());
                }
                self.ready = Some(ready(rest)?);
                return Ok(());
            }
            "RUN" => Action::Run(command("RUN", rest)?),
            "COPY" => Action::Copy(copy(rest)?),
            "ENV" => Action::Env(env(rest)?),
            "WORKDIR" => Action::Workdir(one("WORKDIR", rest)?),
            "USER" => Action::User(one("USER", rest)?),
            other => return Err(refused(other)),
        };
        self.settled()?;
        if self.steps.len() == MAX_STEPS {
            return Err(format!("there are more than {MAX_STEPS} steps; join some with &&"));
        }
        self.steps.push(Step { line: line.number, action });
        Ok(())
    }

    /// Refuses what comes after START: it would not be in effect when it runs.
    fn settled(&self) -> Outcome<()> {
        if self.start.is_some() {
            return Err("nothing but READY follows START; move this line up".to_owned());
        }
        Ok(())
    }

    /// The whole.
    pub(super) fn finish(self) -> Outcome<Description> {
        let Self { from, steps, start, ready, .. } = self;
        let from = from.ok_or("a description begins with FROM, such as: FROM base")?;
        Ok(Description { from, steps, start, ready })
    }
}

/// Says what to write in place of an instruction that has no meaning here.
fn refused(keyword: &str) -> String {
    let instead = match keyword {
        "ADD" => "use COPY, and RUN to unpack an archive",
        "ARG" => "a template is what its description says; write the value itself, or use ENV",
        "CMD" | "ENTRYPOINT" => "START says what runs in every sandbox of the template",
        "EXPOSE" => "leave it out; a port needs no declaration",
        "HEALTHCHECK" => "READY says when the template can be captured",
        "LABEL" | "MAINTAINER" => "leave it out, or make it a comment",
        "ONBUILD" => "write the step where it is to happen",
        "SHELL" => "name the shell in the step: RUN [\"/bin/bash\", \"-c\", \"…\"]",
        "STOPSIGNAL" => "leave it out; a sandbox ends as a whole",
        "VOLUME" => "leave it out; a volume is attached when a sandbox is made",
        _ => {
            let shown: String = keyword.chars().take(40).collect();
            return format!(
                "{shown:?} is no instruction; there are FROM, RUN, COPY, ENV, WORKDIR, USER, \
                 START and READY"
            );
        }
    };
    format!("{keyword} is not understood: {instead}")
}

fn base(rest: &str) -> Outcome<Base> {
    let mut words = rest.split_whitespace();
    let name = words.next().ok_or("FROM names what to start from, such as: FROM base")?;
    if name.starts_with("--") {
        return Err(format!("FROM takes no {name}; an image is for this machine's processors"));
    }
    if words.next().is_some() {
        return Err("FROM takes one name; there are no stages to name with AS".to_owned());
    }
    if let Some(reference) = name.strip_prefix("docker://") {
        return registry(reference).map(Base::Registry);
    }
    for (prefix, kind) in [
        ("oci:", Base::OciFolder as fn(Place) -> Base),
        ("oci-archive:", Base::OciArchive),
        ("docker-archive:", Base::DockerArchive),
    ] {
        if let Some(place) = name.strip_prefix(prefix) {
            return Ok(kind(self::place(place, prefix)?));
        }
    }
    name.parse().map(Base::Named).map_err(|_| {
        format!(
            "{name:?} names no template; an image of a registry is written \
             docker://REGISTRY/REPOSITORY:TAG, one in the context oci:FOLDER, oci-archive:FILE or \
             docker-archive:FILE"
        )
    })
}

fn place(text: &str, prefix: &str) -> Outcome<Place> {
    let (path, reference) = match text.split_once(':') {
        Some((path, reference)) => (path, Some(reference.to_owned())),
        None => (text, None),
    };
    let path = context_path(path).ok_or_else(|| {
        format!("{prefix} names a place in the context, without .. and without / in front")
    })?;
    if path.is_empty() || reference.as_deref() == Some("") {
        return Err(format!("write it as {prefix}PATH or {prefix}PATH:REF"));
    }
    Ok(Place { path, reference })
}

/// A path of the context in one spelling, or nothing if it leaves it.
fn context_path(text: &str) -> Option<String> {
    if text.starts_with('/') || text.contains(['\\', '\0']) {
        return None;
    }
    let parts: Vec<_> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.contains(&"..")).then(|| parts.join("/"))
}

fn registry(text: &str) -> Outcome<Reference> {
    const HOW: &str = "write it as docker://REGISTRY/REPOSITORY:TAG or with @sha256:DIGEST";
    let (text, digest) = match text.split_once('@') {
        Some((text, digest)) => (text, Some(digest.parse::<Digest>().map_err(|_| HOW)?)),
        None => (text, None),
    };
    let (registry, rest) = text.split_once('/').ok_or(HOW)?;
    let (repository, tag) = rest.rsplit_once(':').unwrap_or((rest, "latest"));
    let part = |text: &str, more: &str| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
        text.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            && text.chars().all(allowed)
    };
    let tag_valid = tag.len() <= 128
        && tag.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let valid = registry.len() <= 64
        && part(registry, ".-_")
        && repository.len() <= 255
        && repository.split('/').all(|name| part(name, "._-"));
    if !valid || !tag_valid {
        return Err(HOW.to_owned());
    }
    Ok(Reference {
        registry: registry.to_owned(),
        repository: repository.to_owned(),
        tag: tag.to_owned(),
        digest,
    })
}

/// A program in shell or in exec form.
fn command(keyword: &str, rest: &str) -> Outcome<Command> {
    if rest.is_empty() {
        return Err(format!("{keyword} needs a program"));
    }
    if rest.starts_with("--") {
        let flag = rest.split_whitespace().next().unwrap_or_default();
        return Err(format!("{keyword} takes no flag such as {flag}; leave it out"));
    }
    if let Some(list) = list(rest) {
        return match list.first() {
            Some(program) if !program.is_empty() => Ok(Command::Exec(list)),
            _ => Err(format!("{keyword} needs a program")),
        };
    }
    if here_document(rest) {
        return Err(format!(
            "{keyword} takes no here-document; join lines with \\ or COPY a script"
        ));
    }
    Ok(Command::Shell(rest.to_owned()))
}

/// A JSON array of texts, if it is one.
fn list(rest: &str) -> Option<Vec<String>> {
    if !rest.starts_with('[') {
        return None;
    }
    serde_json::from_str(rest).ok()
}

/// Whether `<<WORD` stands in the line, which would go on in lines that this
/// reader takes for instructions.
fn here_document(rest: &str) -> bool {
    rest.match_indices("<<").any(|(at, _)| {
        let before = rest[..at].chars().next_back();
        let after = rest[at + 2..].trim_start_matches('-').trim_start_matches(['"', '\'']);
        before.is_none_or(char::is_whitespace)
            && after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    })
}

fn copy(rest: &str) -> Outcome<Copy> {
    let mut rest = rest;
    let mut owner = None;
    while let Some(flag) = rest.strip_prefix("--") {
        let (flag, after) = flag.split_once(char::is_whitespace).unwrap_or((flag, ""));
        match flag.split_once('=') {
            Some(("chown", value)) => owner = Some(self::owner(value)?),
            Some(("from", _)) => {
                return Err("COPY --from is not understood: there are no stages; COPY takes from \
                            the context"
                    .to_owned());
            }
            _ => return Err(format!("COPY knows --chown only, not --{flag}")),
        }
        rest = after.trim_start();
    }
    if here_document(rest) {
        return Err("COPY takes no here-document; put the file into the context".to_owned());
    }
    let mut words = match list(rest) {
        Some(list) => list.into_iter().map(Text::literal).collect(),
        None => words(rest)?,
    };
    let destination = words.pop().filter(|_| !words.is_empty());
    let destination = destination.ok_or("COPY needs what to copy and where to")?;
    for source in words.iter().filter_map(Text::plain) {
        if source.contains(['*', '?', '[']) {
            return Err(format!(
                "COPY takes no patterns such as {source:?}; name files or a folder"
            ));
        }
        if source.split('/').any(|part| part == "..") {
            return Err(format!("{source:?} is outside the context; move it inside"));
        }
    }
    Ok(Copy { sources: words, destination, owner })
}

fn owner(value: &str) -> Outcome<(String, Option<String>)> {
    let named = |text: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !text.is_empty() && text.len() <= 32 && text.chars().all(allowed)
    };
    let (account, group) = match value.split_once(':') {
        Some((account, group)) => (account, Some(group)),
        None => (value, None),
    };
    if !named(account) || !group.is_none_or(named) {
        return Err("--chown takes an account or ACCOUNT:GROUP, by name or number".to_owned());
    }
    Ok((account.to_owned(), group.map(str::to_owned)))
}

fn env(rest: &str) -> Outcome<Vec<(String, Text)>> {
    const HOW: &str = "write ENV as NAME=VALUE; a value with spaces needs quotes";
    let mut variables = Vec::new();
    for word in words(rest)? {
        let (name, value) = word.assignment().ok_or(HOW)?;
        let mut characters = name.chars();
        let first = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !characters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(HOW.to_owned());
        }
        variables.push((name, value));
    }
    if variables.is_empty() { Err(HOW.to_owned()) } else { Ok(variables) }
}

fn one(keyword: &str, rest: &str) -> Outcome<Text> {
    let mut words = words(rest)?;
    match (words.pop(), words.is_empty()) {
        (Some(word), true) if word.plain() != Some("") => Ok(word),
        _ => Err(format!("{keyword} takes one word; put quotes around spaces")),
    }
}

fn ready(rest: &str) -> Outcome<Ready> {
    const HOW: &str = "write READY as: READY port 8000, READY 5s, or READY and a command; \
                       --timeout=120s in front says how long it may take";
    let (within_seconds, rest) = match rest.strip_prefix("--timeout=") {
        Some(flag) => {
            let (value, rest) = flag.split_once(char::is_whitespace).ok_or(HOW)?;
            (seconds(value).ok_or(HOW)?, rest.trim_start())
        }
        None => (READY_SECONDS, rest),
    };
    if within_seconds > MAX_READY_SECONDS {
        return Err(format!("a template may take {MAX_READY_SECONDS}s to be ready at most"));
    }
    let words: Vec<_> = rest.split_whitespace().collect();
    let when = match words.as_slice() {
        ["port", port] => When::Listens(port.parse().ok().filter(|port| *port > 0).ok_or(HOW)?),
        [word] if seconds(word).is_some() => {
            let passed = seconds(word).ok_or(HOW)?;
            if passed > within_seconds {
                return Err(format!(
                    "READY {word} is longer than {within_seconds}s; set --timeout="
                ));
            }
            When::Passed(passed)
        }
        [] => return Err(HOW.to_owned()),
        _ => When::Succeeds(command("READY", rest)?),
    };
    Ok(Ready { when, within_seconds })
}

/// `5s`, at least one.
fn seconds(text: &str) -> Option<u32> {
    text.strip_suffix('s')?.parse().ok().filter(|seconds| *seconds > 0)
}
