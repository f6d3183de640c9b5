//! What a build will do, as a function of the description and the context.
//!
//! Each step has a key: the digest of the step before it, of what it says and of
//! what it copies. Two builds of one organisation that agree up to a step have
//! the same key for it, so what it came to can be taken from the first.

use std::collections::BTreeMap;

use domain::{
    image::digest::Digest,
    template::description::{Action, Command, Description, Text},
};
use store::archive::context::Context;

use super::copy::{Load, load, resolve};

/// Changes when the same description makes another template.
const FORMAT: &str = "1";

/// What later steps inherit from earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Variables that the description set.
    pub(super) environment: BTreeMap<String, String>,
    /// Those that were there before.
    pub(super) inherited: BTreeMap<String, String>,
    /// The folder of programs.
    pub(super) workdir: String,
    /// The account of programs.
    pub(super) account: String,
}

/// One step, with its variables replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) line: usize,
    /// As a person reads it.
    pub(super) text: String,
    /// What it came to is remembered under this.
    pub(super) key: String,
    pub(super) work: Work,
    /// What it runs with.
    pub(super) state: State,
}

/// What is done for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Nothing in the machine: it is in what later steps inherit.
    Nothing,
    Run(Command),
    Copy(Load, Option<(String, Option<String>)>),
    /// A folder is made.
    Workdir(String),
}

/// A whole build.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Planned>,
    /// What the template leaves to those that start from it.
    pub(super) state: State,
    /// The key of the template as a whole.
    pub(super) key: String,
}

/// A mistake that only shows with the context at hand.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) what: String,
}

impl Work {
    /// Whether the machine is captured after it. What is quickly done again, or
    /// changes nothing inside, is not worth a snapshot.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Copy(..))
    }
}

impl State {
    fn expand(&self, text: &Text) -> String {
        text.expand(|name| {
            self.environment.get(name).or_else(|| self.inherited.get(name)).map(String::as_str)
        })
    }
}

/// Plans the build of `description` on top of what `root` stands for.
///
/// Reads every file that is copied, so it blocks.
pub(super) fn plan(
    description: &Description,
    root: &str,
    begin: State,
    context: &Context,
) -> Result<Plan, Mistake> {
    let (mut state, mut key) = (begin, digest(&[FORMAT, root]));
    let mut steps = Vec::new();
    for step in &description.steps {
        let wrong = |what: String| Mistake { line: step.line, what };
        let mut copied = String::new();
        let work = match &step.action {
            Action::Run(command) => Work::Run(command.clone()),
            Action::Copy(copy) => {
                let sources: Vec<_> = copy.sources.iter().map(|text| state.expand(text)).collect();
                let destination = state.expand(&copy.destination);
                let load = load(context, &sources, &destination, &state.workdir).map_err(wrong)?;
                let digest = load.digest(context);
                copied = digest.map_err(|error| wrong(error.to_string()))?.to_string();
                Work::Copy(load, copy.owner.clone())
            }
            Action::Env(variables) => {
                for (name, value) in variables {
                    let value = state.expand(value);
                    state.environment.insert(name.clone(), value);
                }
                Work::Nothing
            }
            Action::Workdir(folder) => {
                state.workdir = resolve(&state.workdir, &state.expand(folder));
                Work::Workdir(state.workdir.clone())
            }
            Action::User(user) => {
                state.account = account(&state.expand(user)).map_err(wrong)?.to_owned();
                Work::Nothing
            }
        };
        let said = serde_json::to_string(&step.action).map_err(|error| wrong(error.to_string()))?;
        key = digest(&[&key, &said, &copied]);
        steps.push(Planned {
            line: step.line,
            text: shown(&step.action),
            key: key.clone(),
            work,
            state: state.clone(),
        });
    }
    let last = serde_json::to_string(&(&description.start, &description.ready));
    let last = last.map_err(|error| Mistake { line: 1, what: error.to_string() })?;
    Ok(Plan { steps, state, key: digest(&[&key, &last]) })
}

/// The account that a word names, as the guest lets programs run.
pub(super) fn account(word: &str) -> Result<&'static str, String> {
    match word.split(':').next().unwrap_or_default() {
        "root" | "0" => Ok("root"),
        "user" | "1000" => Ok("user"),
        _ => Err(format!("USER is root or user here, not {word:?}; use su in RUN for others")),
    }
}

/// The digest of texts, none of which can be taken for another's part.
pub(super) fn digest(parts: &[&str]) -> String {
    let mut whole = String::new();
    for part in parts {
        whole.push_str(&format!("{} {part}\n", part.len()));
    }
    Digest::of(whole.as_bytes()).hex()
}

/// A step in one line. The values of variables are not shown.
fn shown(action: &Action) -> String {
    let words = |texts: &[Text]| {
        let shown = |text: &Text| text.plain().map_or_else(|| "…".to_owned(), str::to_owned);
        texts.iter().map(shown).collect::<Vec<_>>().join(" ")
    };
    let text = match action {
        Action::Run(command) => format!("RUN {}", program(command)),
        Action::Copy(copy) => {
            format!(
                "COPY {} {}",
                words(&copy.sources),
                words(std::slice::from_ref(&copy.destination))
            )
        }
        Action::Env(variables) => {
            let names: Vec<_> = variables.iter().map(|(name, _)| format!("{name}=…")).collect();
            format!("ENV {}", names.join(" "))
        }
        Action::Workdir(folder) => format!("WORKDIR {}", words(std::slice::from_ref(folder))),
        Action::User(user) => format!("USER {}", words(std::slice::from_ref(user))),
    };
    text.chars().take(200).collect()
}

/// A program as a person reads it.
pub(super) fn program(command: &Command) -> String {
    match command {
        Command::Shell(line) => line.clone(),
        Command::Exec(words) => format!("{words:?}"),
    }
}

#[cfg(test)]
mod tests {
    use store::archive::context::Section;

    use super::*;

    fn planned(text: &str, root: &str, content: &str) -> Plan {
        let mut builder = tar::Builder::new(tempfile::tempfile().expect("a file"));
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, "a", content.as_bytes()).expect("appended");
        let file = builder.into_inner().expect("a tar file");
        let context = Context::read(Section::whole(file).expect("a length")).expect("a context");
        let description = Description::parse(text).expect("a description");
        let begin = State {
            inherited: [("PATH".to_owned(), "/bin".to_owned())].into(),
            workdir: "/".to_owned(),
            account: "root".to_owned(),
            ..State::default()
        };
        plan(&description, root, begin, &context).expect("a plan")
    }

    fn keys(text: &str, content: &str) -> Vec<String> {
        planned(text, "root", content).steps.into_iter().map(|step| step.key).collect()
    }

    /// U38: a change makes new keys from its step on, and none before.
    #[test]
    fn a_step_is_known_by_all_that_led_to_it() {
        let text = "FROM base\nRUN one\nCOPY a /a\nRUN two";
        let first = keys(text, "1");
        assert_eq!(first, keys(&format!("# said\n{text}\n"), "1"));
        let other = keys(text, "2");
        assert_eq!(first[0], other[0]);
        assert!(first[1] != other[1] && first[2] != other[2]);
        let other = keys("FROM base\nRUN one\nENV A=1\nCOPY a /a\nRUN two", "1");
        assert!(first[0] == other[0] && !other.contains(&first[1]));
        assert_ne!(first[0], planned(text, "another", "1").steps[0].key);
        let whole = |end: &str| planned(&format!("{text}\n{end}"), "root", "1").key;
        assert_ne!(whole("START a"), whole("START b"));
        assert_ne!(whole("START a"), whole("READY 1s"));
    }

    #[test]
    fn variables_folder_and_account_are_inherited() {
        let text = "FROM base\nENV PATH=/opt:$PATH A=1\nENV B=$A-$C\nWORKDIR /srv\nWORKDIR app\n\
                    USER 1000\nCOPY a $B/";
        let plan = planned(text, "root", "1");
        assert_eq!(plan.state.environment["PATH"], "/opt:/bin");
        assert_eq!(plan.state.environment["B"], "1-");
        assert_eq!(
            (plan.state.workdir.as_str(), plan.state.account.as_str()),
            ("/srv/app", "user")
        );
        let Work::Copy(load, _) = &plan.steps[5].work else { panic!() };
        assert_eq!(load.folder.as_deref(), Some("/srv/app/1-"));
    }

    /// S28: what a step sets is not shown while it is built.
    #[test]
    fn the_value_of_a_variable_is_not_shown() {
        let plan = planned("FROM base\nENV TOKEN=hunter2", "root", "1");
        assert_eq!(plan.steps[0].text, "ENV TOKEN=…");
    }

    #[test]
    fn a_key_is_of_its_parts_and_not_of_their_sum() {
        assert_ne!(digest(&["a", "bc"]), digest(&["ab", "c"]));
        assert_ne!(digest(&["a\n1 b"]), digest(&["a", "b"]));
    }
}
