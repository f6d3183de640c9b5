//! Long lists, in pages.

use std::{fmt, str::FromStr};

use crate::error::Error;

/// One page of a list, and where the next begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Present when there is more.
    pub next: Option<Cursor>,
}

/// A place in a list. Opaque to clients; each list reads its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(String);

/// How many items a page may have: 1 to 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u32);

impl Limit {
    /// The most.
    pub const MAX: u32 = 200;

    /// Checks a number.
    pub fn new(limit: u32) -> Result<Self, Error> {
        if !(1..=Self::MAX).contains(&limit) {
            return Err(Error::invalid("limit", "must be 1 to 200"));
        }
        Ok(Self(limit))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for Limit {
    fn default() -> Self {
        Self(50)
    }
}

impl Cursor {
    pub(crate) fn new(place: impl fmt::Display) -> Self {
        Self(place.to_string())
    }

    /// Reads the place; `None` when it is not one of this list.
    pub(crate) fn read<T: FromStr>(&self) -> Result<T, Error> {
        self.0.parse().map_err(|_| Self::invalid())
    }

    /// Reads a place of two parts.
    pub(crate) fn read_pair<A: FromStr, B: FromStr>(&self) -> Result<(A, B), Error> {
        let (first, second) = self.0.split_once('.').ok_or_else(Self::invalid)?;
        match (first.parse(), second.parse()) {
            (Ok(first), Ok(second)) => Ok((first, second)),
            _ => Err(Self::invalid()),
        }
    }

    fn invalid() -> Error {
        Error::invalid("cursor", "not a cursor of this list; use next_cursor as it was given")
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(raw: &str) -> Result<Self, Error> {
        if raw.is_empty() || raw.len() > 64 || !raw.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Self::invalid());
        }
        Ok(Self(raw.to_owned()))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Cuts a list that was read with one item too many into a page.
pub(crate) fn page<T>(
    mut items: Vec<T>,
    limit: Limit,
    place: impl FnOnce(&T) -> Cursor,
) -> Page<T> {
    let most = limit.get() as usize;
    let more = items.len() > most;
    items.truncate(most);
    let next = if more { items.last().map(place) } else { None };
    Page { items, next }
}
