//! Words of an instruction: quotes, escapes and variables, as a shell reads them.
//!
//! A word is parsed once into [`Text`] and put together when the variables are
//! known. As in a shell, `'…'` is literal, a backslash takes the next character
//! as it is, and within `"…"` only before `"`, `$`, `` ` `` and `\`.
//!
//! Deliberately absent: command substitution, patterns and arithmetic. What
//! looks like one stays the text that it is.

use std::{iter::Peekable, str::Chars};

use serde::{Deserialize, Serialize};

/// A text in which variables are still names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Literal(String),
    Variable { name: String, without: Without },
}

/// What stands for a variable, depending on whether it has a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Without {
    /// `$NAME`: its value, or nothing.
    Nothing,
    /// `${NAME:-text}`: its value, or the text.
    Default(String),
    /// `${NAME:+text}`: the text if it has a value.
    Alternative(String),
}

impl Text {
    /// A text without variables.
    pub fn literal(text: impl Into<String>) -> Self {
        Self(vec![Part::Literal(text.into())])
    }

    /// The text with its variables replaced. One that is not set is empty.
    pub fn expand<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Variable { name, without } => {
                    let set = value(name).filter(|value| !value.is_empty());
                    text.push_str(match (set, without) {
                        (Some(value), Without::Nothing | Without::Default(_)) => value,
                        (None, Without::Default(other))
                        | (Some(_), Without::Alternative(other)) => other,
                        (None, Without::Nothing | Without::Alternative(_)) => "",
                    });
                }
            }
        }
        text
    }

    /// The text if it names no variable.
    pub fn plain(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Literal(literal)] => Some(literal),
            _ => None,
        }
    }

    /// `NAME=rest` as a name and the rest; nothing if it does not begin so.
    pub(super) fn assignment(mut self) -> Option<(String, Self)> {
        let Some(Part::Literal(first)) = self.0.first_mut() else { return None };
        let (name, rest) = first.split_once('=')?;
        let (name, rest) = (name.to_owned(), rest.to_owned());
        *first = rest;
        Some((name, self))
    }

    fn push(&mut self, character: char) {
        if let Some(Part::Literal(literal)) = self.0.last_mut() {
            literal.push(character);
        } else {
            self.0.push(Part::Literal(character.to_string()));
        }
    }
}

/// Splits `line` into words.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn words(line: &str) -> Result<Vec<Text>, String> {
    let mut characters = line.chars().peekable();
    let mut words = Vec::new();
    loop {
        while characters.next_if(|c| c.is_whitespace()).is_some() {}
        if characters.peek().is_none() {
            return Ok(words);
        }
        words.push(word(&mut characters)?);
    }
}

fn word(characters: &mut Peekable<Chars<'_>>) -> Result<Text, String> {
    // An empty literal, so that "" is a word.
    let mut text = Text(vec![Part::Literal(String::new())]);
    while let Some(character) = characters.next_if(|c| !c.is_whitespace()) {
        match character {
            '\'' => loop {
                match characters.next() {
                    Some('\'') => break,
                    Some(inner) => text.push(inner),
                    None => return Err("a ' is not closed".to_owned()),
                }
            },
            '"' => quoted(characters, &mut text)?,
            '\\' => text.push(characters.next().ok_or("a \\ at the end escapes nothing")?),
            '$' => variable(characters, &mut text)?,
            other => text.push(other),
        }
    }
    Ok(text)
}

fn quoted(characters: &mut Peekable<Chars<'_>>, text: &mut Text) -> Result<(), String> {
    loop {
        match characters.next() {
            Some('"') => return Ok(()),
            Some('$') => variable(characters, text)?,
            Some('\\') => match characters.next_if(|c| matches!(c, '"' | '$' | '\\' | '`')) {
                Some(escaped) => text.push(escaped),
                None => text.push('\\'),
            },
            Some(other) => text.push(other),
            None => return Err("a \" is not closed".to_owned()),
        }
    }
}

/// What follows a `$`.
fn variable(characters: &mut Peekable<Chars<'_>>, text: &mut Text) -> Result<(), String> {
    let braced = characters.next_if_eq(&'{').is_some();
    let mut name = String::new();
    while let Some(character) = characters.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        if name.is_empty() && character.is_ascii_digit() {
            return Err(format!("${character} is no variable; write \\$ for a dollar sign"));
        }
        name.push(character);
    }
    if name.is_empty() && !braced {
        if let Some(special) = characters.peek().filter(|c| "-$?!*@#".contains(**c)) {
            return Err(format!("${special} is no variable; write \\$ for a dollar sign"));
        }
        text.push('$');
        return Ok(());
    }
    let without = if braced { closing(characters, &name)? } else { Without::Nothing };
    text.0.push(Part::Variable { name, without });
    Ok(())
}

/// From after the name in `${NAME…}` to the brace that closes it.
fn closing(characters: &mut Peekable<Chars<'_>>, name: &str) -> Result<Without, String> {
    let refuse = || {
        format!("${{{name}…}} is not understood; use ${{NAME}}, ${{NAME:-text}} or ${{NAME:+text}}")
    };
    if name.is_empty() {
        return Err(refuse());
    }
    if characters.next_if_eq(&'}').is_some() {
        return Ok(Without::Nothing);
    }
    let kind = match (characters.next(), characters.next()) {
        (Some(':'), Some('-')) => Without::Default,
        (Some(':'), Some('+')) => Without::Alternative,
        _ => return Err(refuse()),
    };
    let mut other = String::new();
    loop {
        match characters.next() {
            Some('}') => return Ok(kind(other)),
            // What a shell would read again is not guessed at.
            Some('$' | '\'' | '"' | '\\' | '{') | None => return Err(refuse()),
            Some(character) => other.push(character),
        }
    }
}
