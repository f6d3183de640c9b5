//! What must be true inside a sandbox that runs an image.
//!
//! Facts are data in the manifest. [`Facts::script`] turns them into one shell
//! script that prints a line for each, and [`Facts::read`] turns its output back
//! into outcomes. A fact whose line is missing has failed: a script that was cut
//! short, or that somebody inside replaced, proves nothing.
//!
//! The script runs as root or as a user with passwordless sudo, and needs
//! `python3`, `find`, `ss` and `getent`, which the facts themselves require.
//!
//! Deliberately absent: running it, which `image verify` does in a real sandbox.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// What an image promises about the inside of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Accounts that exist exactly so.
    pub users: Vec<User>,
    /// Every file with a setuid or setgid bit; no other file has one.
    pub setuid: BTreeSet<String>,
    /// Every listening socket, as `tcp 127.0.0.1:80`; there is no other.
    pub listening: BTreeSet<String>,
    /// Every network interface; there is no other.
    pub interfaces: BTreeSet<String>,
    /// Directories on which a file can carry user extended attributes.
    pub user_xattrs: BTreeSet<String>,
    /// Directories that the named account owns.
    pub owned: BTreeMap<String, String>,
    /// Tools by name, each with a command line that must succeed.
    pub tools: BTreeMap<String, String>,
    /// Anything else, by sentence, each with a command line that must succeed.
    pub checks: BTreeMap<String, String>,
}

/// An account that an image promises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User and group id.
    pub id: u32,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// Whether one fact holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The fact, as a sentence.
    pub fact: String,
    /// What was found instead, or nothing if the fact holds.
    pub failure: Option<String>,
}

/// The longest explanation that is kept of one failure.
const MAX_FAILURE_CHARS: usize = 400;

impl Facts {
    /// The script that checks every fact and prints one line for each.
    pub fn script(&self) -> String {
        let mut script = PREAMBLE.to_owned();
        for (index, (_, command)) in self.commands().iter().enumerate() {
            script.push_str(&format!("fact {index} {}\n", quote(command)));
        }
        script
    }

    /// The outcomes, in the order of the facts, from what the script printed.
    pub fn read(&self, output: &str) -> Vec<Outcome> {
        let mut said: BTreeMap<&str, Option<String>> = BTreeMap::new();
        for line in output.lines() {
            let mut fields = line.splitn(4, '\t');
            let (Some("fact"), Some(index), Some(verdict)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let detail = fields.next().unwrap_or_default();
            let failure = (verdict != "pass").then(|| {
                let printable = detail.chars().filter(|c| !c.is_control());
                printable.take(MAX_FAILURE_CHARS).collect()
            });
            // The first word on a fact counts, so that a later line cannot
            // turn a failure into a success.
            said.entry(index).or_insert(failure);
        }
        let unsaid = || Some("the script did not report on it".to_owned());
        let outcome = |(index, (fact, _)): (usize, (String, String))| Outcome {
            fact,
            failure: said.get(index.to_string().as_str()).cloned().unwrap_or_else(unsaid),
        };
        self.commands().into_iter().enumerate().map(outcome).collect()
    }

    /// Each fact as a sentence and the command that succeeds if it holds.
    fn commands(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for User { name, id, home, shell } in &self.users {
            all.push((
                format!("{name} is user and group {id} with home {home} and shell {shell}"),
                format!("account {} {id} {} {}", quote(name), quote(home), quote(shell)),
            ));
        }
        let setuid = set(&self.setuid);
        all.push((
            "no file but the declared ones is setuid or setgid".into(),
            format!("same {setuid} \"$(as_root find / -xdev -type f -perm /6000)\""),
        ));
        all.push((
            "nothing but the declared sockets listens".into(),
            format!("same {} \"$(listening)\"", set(&self.listening)),
        ));
        all.push((
            "there is no network interface but the declared ones".into(),
            format!("same {} \"$(ls /sys/class/net)\"", set(&self.interfaces)),
        ));
        for directory in &self.user_xattrs {
            all.push((
                format!("files in {directory} carry user extended attributes"),
                format!("xattr {}", quote(directory)),
            ));
        }
        for (directory, owner) in &self.owned {
            all.push((
                format!("{directory} belongs to {owner}"),
                format!("same {} \"$(stat -c %U {})\"", quote(owner), quote(directory)),
            ));
        }
        for (tool, command) in &self.tools {
            all.push((format!("{tool} works"), command.clone()));
        }
        all.extend(self.checks.iter().map(|(fact, command)| (fact.clone(), command.clone())));
        all
    }
}

/// Quotes `text` as one word for a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn set(items: &BTreeSet<String>) -> String {
    quote(&items.iter().map(String::as_str).collect::<Vec<_>>().join("\n"))
}

const PREAMBLE: &str = r#"set -u
export LC_ALL=C
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
same() {
    wanted=$(printf '%s\n' "$1" | sort -u)
    found=$(printf '%s\n' "$2" | sort -u)
    [ "$wanted" = "$found" ] || { printf 'wanted %s; found %s\n' "$wanted" "$found"; return 1; }
}
account() {
    same "$1:$2:$2:$3:$4" "$(getent passwd "$1" | cut -d: -f1,3,4,6,7)"
}
listening() {
    { ss -Hltn | sed 's/^/tcp /'; ss -Hlun | sed 's/^/udp /'; } | awk '{ print $1, $5 }'
}
xattr() {
    as_root python3 -c '
import os, sys, tempfile
with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
    os.setxattr(file.name, "user.coldframe", b"x")
    assert os.getxattr(file.name, "user.coldframe") == b"x"
' "$1"
}
fact() {
    if said=$(eval "$2" 2>&1 </dev/null); then
        printf 'fact\t%s\tpass\n' "$1"
    else
        printf 'fact\t%s\tfail\t%s\n' "$1" "$(printf '%s' "$said" | tr '\n\t' '  ' | tail -c 400)"
    fi
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            checks: [
                ("a quote's worth", "test \"it's\" = 'it'\\''s'"),
                ("false", "echo no; echo way; false"),
                ("true", "true"),
            ]
            .map(|(fact, command)| (fact.to_owned(), command.to_owned()))
            .into(),
            interfaces: ["lo".to_owned()].into(),
            ..Facts::default()
        }
    }

    fn failure<'a>(outcomes: &'a [Outcome], fact: &str) -> Option<&'a str> {
        let outcome = outcomes.iter().find(|outcome| outcome.fact == fact);
        outcome.expect("every fact has an outcome").failure.as_deref()
    }

    #[test]
    fn the_script_says_of_each_check_whether_it_holds() {
        let facts = facts();
        // Not the one that walks the whole file system of whoever runs the test.
        let script = facts.script().replace("find /", "true");
        let run = std::process::Command::new("sh").arg("-c").arg(script).output();
        let output = String::from_utf8(run.expect("sh runs").stdout).expect("text");
        let outcomes = facts.read(&output);
        assert_eq!(failure(&outcomes, "true"), None);
        assert_eq!(failure(&outcomes, "a quote's worth"), None);
        assert_eq!(failure(&outcomes, "false"), Some("no way"));
    }

    #[test]
    fn a_fact_that_was_not_reported_has_failed() {
        let facts = facts();
        let outcomes = facts.read("noise\nfact\t99\tpass\nfact\t0\n");
        assert!(outcomes.iter().all(|outcome| outcome.failure.is_some()));
    }

    #[test]
    fn a_later_line_cannot_take_a_failure_back() {
        let facts = facts();
        let outcomes = facts.read("fact\t0\tfail\tx\x1b[1m\nfact\t0\tpass\n");
        assert_eq!(outcomes[0].failure.as_deref(), Some("x[1m"));
    }
}
