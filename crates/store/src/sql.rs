//! One statement, two databases.
//!
//! A statement is a `&'static str` in the subset that SQLite and Postgres share:
//! `$1` parameters, TEXT and BIGINT columns, `ON CONFLICT`, `RETURNING`. Its
//! parameters are [`Value`]s and its result is [`Row`]s, so that no other file
//! names a database.
//!
//! Deliberately absent: anything that builds SQL from parts. A filter that is
//! not asked for is a parameter that matches everything.

use std::{io, time::Duration};

use sqlx::{Postgres, Row as _, Sqlite, postgres::PgRow, sqlite::SqliteRow};

use crate::error::StoreError;

/// How long one step with a database may take, waiting for a connection and for
/// locks included. What came of a commit that takes longer is unknown, which is
/// why every caller of the store can ask again.
const MOST: Duration = Duration::from_secs(15);

/// A parameter. Its type is stated even where it is NULL, which Postgres needs.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(Option<String>),
    Integer(Option<i64>),
}

/// One row of a result.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A transaction. Dropped without [`Transaction::commit`], it changes nothing.
pub(crate) enum Transaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

macro_rules! bound {
    ($sql:expr, $values:expr) => {{
        let mut query = sqlx::query($sql);
        for value in $values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Integer(integer) => query.bind(integer),
            };
        }
        query
    }};
}
pub(crate) use bound;

/// Waits for one step, for [`MOST`].
pub(crate) async fn bounded<T>(
    step: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(MOST, step).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(StoreError::Unavailable(sqlx::Error::Io(io::ErrorKind::TimedOut.into()))),
    }
}

impl Transaction {
    /// Runs a statement and returns how many rows it changed.
    pub(crate) async fn execute(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<u64, StoreError> {
        Ok(match self {
            Self::Sqlite(tx) => {
                bounded(bound!(sql, values).execute(&mut **tx)).await?.rows_affected()
            }
            Self::Postgres(tx) => {
                bounded(bound!(sql, values).execute(&mut **tx)).await?.rows_affected()
            }
        })
    }

    /// Runs a statement that gives at most one row.
    pub(crate) async fn fetch_optional(
        &mut self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(match self {
            Self::Sqlite(tx) => {
                bounded(bound!(sql, values).fetch_optional(&mut **tx)).await?.map(Row::Sqlite)
            }
            Self::Postgres(tx) => {
                bounded(bound!(sql, values).fetch_optional(&mut **tx)).await?.map(Row::Postgres)
            }
        })
    }

    /// Makes the changes last.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(tx) => bounded(tx.commit()).await,
            Self::Postgres(tx) => bounded(tx.commit()).await,
        }
    }
}

impl Row {
    /// A TEXT column that is never NULL.
    pub(crate) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    /// A TEXT column.
    pub(crate) fn optional_text(&self, column: &'static str) -> Result<Option<String>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    /// A BIGINT column that is never NULL.
    pub(crate) fn integer(&self, column: &'static str) -> Result<i64, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    /// A BIGINT column.
    pub(crate) fn optional_integer(&self, column: &'static str) -> Result<Option<i64>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    /// A TEXT column read as the type it was written from.
    pub(crate) fn parsed<T: std::str::FromStr>(
        &self,
        column: &'static str,
    ) -> Result<T, StoreError> {
        let value = self.text(column)?;
        value.parse().map_err(|_| StoreError::Corrupt { column, value })
    }

    /// The same for a column that may be NULL.
    pub(crate) fn optional_parsed<T: std::str::FromStr>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let Some(value) = self.optional_text(column)? else { return Ok(None) };
        value.parse().map(Some).map_err(|_| StoreError::Corrupt { column, value })
    }

    /// A BIGINT column that fits a smaller type.
    pub(crate) fn number<T: TryFrom<i64>>(&self, column: &'static str) -> Result<T, StoreError> {
        let value = self.integer(column)?;
        T::try_from(value).map_err(|_| StoreError::Corrupt { column, value: value.to_string() })
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Self {
        Self::Integer(Some(integer))
    }
}

impl From<u32> for Value {
    fn from(integer: u32) -> Self {
        Self::Integer(Some(i64::from(integer)))
    }
}

impl From<Option<i64>> for Value {
    fn from(integer: Option<i64>) -> Self {
        Self::Integer(integer)
    }
}

impl From<domain::time::Timestamp> for Value {
    fn from(time: domain::time::Timestamp) -> Self {
        Self::Integer(Some(time.0))
    }
}

impl From<Option<domain::time::Timestamp>> for Value {
    fn from(time: Option<domain::time::Timestamp>) -> Self {
        Self::Integer(time.map(|time| time.0))
    }
}

impl From<u64> for Value {
    /// No length, size or time of ours comes near the end.
    fn from(integer: u64) -> Self {
        Self::Integer(Some(i64::try_from(integer).unwrap_or(i64::MAX)))
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Integer(Some(i64::from(truth)))
    }
}

impl From<std::time::Duration> for Value {
    fn from(duration: std::time::Duration) -> Self {
        Self::Integer(Some(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl From<Option<std::time::Duration>> for Value {
    fn from(duration: Option<std::time::Duration>) -> Self {
        match duration {
            Some(duration) => duration.into(),
            None => Self::Integer(None),
        }
    }
}

/// The parameters of a statement, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::Value::from($value)),*] };
}
pub(crate) use values;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_database_that_says_nothing_is_not_waited_for() {
        let silent = std::future::pending::<Result<(), sqlx::Error>>();
        assert!(matches!(bounded(silent).await, Err(StoreError::Unavailable(_))));
    }
}
