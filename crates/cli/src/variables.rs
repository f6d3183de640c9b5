//! `--env NAME=VALUE` and `--env NAME`.
//!
//! The second form takes the value from our own environment, so that it appears
//! in no shell history and no process list. Nothing else of our environment
//! enters a sandbox. Values are checked and kept in a type that does not print.

use domain::environment::Environment;

use crate::error::Failure;

/// Reads the arguments; `own` looks into our own environment.
pub(crate) fn read(
    arguments: &[String],
    own: impl Fn(&str) -> Option<String>,
) -> Result<Environment, Failure> {
    let mut variables = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let variable = match argument.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = own(argument).ok_or_else(|| {
                    Failure::usage(format!("--env {argument}: there is no such variable here"))
                        .hint(format!("give it a value: --env {argument}=…"))
                })?;
                (argument.clone(), value)
            }
        };
        variables.push(variable);
    }
    Environment::new(variables).map_err(|error| Failure::usage(format!("--env: {error}")))
}

/// A variable of our own environment, if it is text.
pub(crate) fn own(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Result<Vec<(String, String)>, String> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let own = |name: &str| (name == "HERE").then(|| "here's".to_owned());
        let read = read(&arguments, own).map_err(|failure| failure.message)?;
        Ok(read.expose().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn a_value_is_everything_after_the_first_equals_sign() {
        let expected = Ok(vec![("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(names(&["A=b=c"]), expected);
        assert_eq!(names(&["A="]), Ok(vec![("A".to_owned(), String::new())]));
    }

    #[test]
    fn a_bare_name_takes_the_value_from_here() {
        assert_eq!(names(&["HERE"]), Ok(vec![("HERE".to_owned(), "here's".to_owned())]));
        assert!(names(&["THERE"]).is_err());
    }

    /// S29
    #[test]
    fn a_refusal_does_not_show_the_value() {
        let message = names(&["1A=hunter2"]).unwrap_err();
        assert!(!message.contains("hunter2"), "{message}");
    }
}
