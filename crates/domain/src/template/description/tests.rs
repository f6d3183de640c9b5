// What is understood, what is refused, and that a shell reads words alike.

use std::process::Command as Process;

use proptest::prelude::*;

use super::{words::words, *};

fn parse(text: &str) -> Description {
    Description::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    Description::parse(text).expect_err(text).to_string()
}

/// U38: a description is read whole, in the order of its lines.
#[test]
fn a_description_is_read_as_it_is_meant() {
    let text = r#"
# comments and empty lines are skipped
from base

RUN apt-get update && \
    # in a continuation too
    apt-get install -y jq
RUN ["printf", "%s\n", "a b"]
RUN [ -f /etc/passwd ] && echo yes
COPY --chown=user:1000 app "with space" /srv/app/
COPY ["a", "/b"]
ENV NAME="a b" OTHER=$NAME/x
WORKDIR /srv/app
USER user
START python3 -m http.server 8000
READY --timeout=90s port 8000
"#;
    let description = parse(text);
    assert_eq!(description.from, Base::Named("base".parse().unwrap()));
    let lines: Vec<_> = description.steps.iter().map(|step| step.line).collect();
    assert_eq!(lines, [5, 8, 9, 10, 11, 12, 13, 14]);
    let Action::Run(Command::Shell(line)) = &description.steps[0].action else { panic!() };
    assert_eq!(line, "apt-get update &&     apt-get install -y jq");
    assert!(
        matches!(&description.steps[1].action, Action::Run(Command::Exec(list)) if list[2] == "a b")
    );
    assert!(matches!(&description.steps[2].action, Action::Run(Command::Shell(_))));
    let Action::Copy(copy) = &description.steps[3].action else { panic!() };
    assert_eq!(copy.sources[1].plain(), Some("with space"));
    assert_eq!(copy.owner, Some(("user".into(), Some("1000".into()))));
    let Action::Env(variables) = &description.steps[5].action else { panic!() };
    assert_eq!(variables[1].1.expand(|name| (name == "NAME").then_some("v")), "v/x");
    assert_eq!(description.ready, Some(Ready { when: When::Listens(8000), within_seconds: 90 }),);
}

/// U38: what is not understood is refused, with its line and what to do.
#[test]
fn every_mistake_is_told_with_its_line_and_what_to_write() {
    for (text, line, said) in [
        ("", 1, "FROM base"),
        ("RUN true", 1, "begins with FROM"),
        ("ARG A=1\nFROM base", 1, "ENV"),
        ("FROM base\nARG A=1", 2, "ENV"),
        ("FROM base AS one", 1, "no stages"),
        ("FROM --platform=x base", 1, "--platform"),
        ("FROM base\nFROM base", 2, "one FROM"),
        ("FROM Debian:12", 1, "docker://"),
        ("FROM docker://hub", 1, "REPOSITORY"),
        ("FROM docker://hub/../x", 1, "REPOSITORY"),
        ("FROM docker://hub/a@sha256:12", 1, "DIGEST"),
        ("FROM oci:../x", 1, "context"),
        ("FROM oci-archive:/etc/x", 1, "context"),
        ("FROM base\nADD x /", 2, "COPY"),
        ("FROM base\nCMD x", 2, "START"),
        ("FROM base\nENTRYPOINT x", 2, "START"),
        ("FROM base\nHEALTHCHECK x", 2, "READY"),
        ("FROM base\nRUNN x", 2, "no instruction"),
        ("FROM base\nRUN --mount=type=cache x", 2, "--mount"),
        ("FROM base\nRUN <<EOF\ntrue\nEOF", 2, "here-document"),
        ("FROM base\nRUN cat <<-'EOF'", 2, "here-document"),
        ("FROM base\nRUN", 2, "program"),
        ("FROM base\nRUN []", 2, "program"),
        ("FROM base\nCOPY a", 2, "where"),
        ("FROM base\nCOPY ../a /", 2, "outside"),
        ("FROM base\nCOPY *.py /", 2, "patterns"),
        ("FROM base\nCOPY --from=x a /", 2, "stages"),
        ("FROM base\nCOPY --chmod=1 a /", 2, "--chown"),
        ("FROM base\nCOPY --chown=a/b a /", 2, "ACCOUNT"),
        ("FROM base\nENV A b", 2, "NAME=VALUE"),
        ("FROM base\nENV A-B=c", 2, "NAME=VALUE"),
        ("FROM base\nENV A='b", 2, "not closed"),
        ("FROM base\nENV A=${B!}", 2, "${NAME:-text}"),
        ("FROM base\nWORKDIR a b", 2, "one word"),
        ("FROM base\nSTART a\nRUN b", 3, "follows START"),
        ("FROM base\nREADY 700s", 2, "--timeout="),
        ("FROM base\nREADY --timeout=700s 1s", 2, "600s"),
        ("FROM base\nREADY port 0", 2, "READY port 8000"),
        ("FROM base\nREADY", 2, "READY port 8000"),
    ] {
        let told = refused(text);
        assert!(told.contains(&format!("line {line}: ")), "{text:?}: {told}");
        assert!(told.contains(said), "{text:?}: {told}");
    }
    let told = refused("FROM base\nADD a b\nRUN true\nLABEL a=b");
    assert!(told.contains("line 2") && told.contains("line 4"), "{told}");
}

#[test]
fn what_looks_like_a_here_document_and_is_none_is_a_command() {
    for line in ["RUN echo $((1<<2))", "RUN cat <<< word", "RUN grep '<<' x", "RUN a<<b"] {
        parse(&format!("FROM base\n{line}"));
    }
}

#[test]
fn a_reference_has_a_registry_a_repository_and_a_tag_or_a_digest() {
    let digest = crate::image::digest::Digest::of(b"x");
    let text = format!("FROM docker://hub/library/debian:12@{digest}");
    let Base::Registry(reference) = parse(&text).from else { panic!() };
    assert_eq!(reference.registry, "hub");
    assert_eq!(reference.repository, "library/debian");
    assert_eq!(reference.tag, "12");
    assert_eq!(reference.digest, Some(digest));
    let Base::Registry(reference) = parse("FROM docker://hub/a").from else { panic!() };
    assert_eq!((reference.tag.as_str(), reference.digest), ("latest", None));
    let Base::DockerArchive(place) = parse("FROM docker-archive:./a/b.tar:x:1").from else {
        panic!()
    };
    assert_eq!((place.path.as_str(), place.reference.as_deref()), ("a/b.tar", Some("x:1")));
}

#[test]
fn a_variable_can_have_a_default_and_an_alternative() {
    let value = |name: &str| (name == "SET").then_some("v");
    for (text, expected) in [
        ("$SET", "v"),
        ("${SET}x", "vx"),
        ("$UNSET", ""),
        ("${UNSET:-d}", "d"),
        ("${SET:-d}", "v"),
        ("${SET:+a}", "a"),
        ("${UNSET:+a}", ""),
        ("'$SET'", "$SET"),
        ("\\$SET", "$SET"),
        ("\"$SET\"", "v"),
        ("$", "$"),
        ("a$/b", "a$/b"),
    ] {
        assert_eq!(words(text).unwrap()[0].expand(value), expected, "{text}");
    }
}

/// What `sh` makes of the same words.
fn shell(line: &str) -> Option<Vec<String>> {
    let script = format!("printf '%s\\0' {line}");
    let run = Process::new("sh").args(["-fc", &script]).env("A", "v").env_remove("B").output();
    let output = run.expect("sh runs");
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).expect("text");
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Words mean what they mean to the shell that people know them from.
    #[test]
    fn words_are_those_of_a_shell(line in "x[ab \"'\\\\$A{}:-]{0,14}") {
        // An unset variable that is a whole word is no word to a shell.
        if let (Ok(ours), Some(theirs)) = (words(&line), shell(&line)) {
            let value = |name: &str| (name == "A").then_some("v");
            let ours: Vec<_> = ours.iter().map(|word| word.expand(value)).collect();
            let full = |words: Vec<String>| -> Vec<_> {
                words.into_iter().filter(|word| !word.is_empty()).collect()
            };
            prop_assert_eq!(full(ours), full(theirs), "{}", line);
        }
    }

    /// No text makes the reader fail otherwise than by a mistake.
    #[test]
    fn any_text_is_a_description_or_a_mistake(text in "(FROM|RUN|COPY|ENV|READY|[ -~\n\\\\]){0,40}") {
        if let Err(Mistakes(mistakes)) = Description::parse(&text) {
            prop_assert!(!mistakes.is_empty() && mistakes.len() <= MAX_MISTAKES);
            prop_assert!(mistakes.iter().all(|mistake| mistake.line >= 1));
        }
    }
}
