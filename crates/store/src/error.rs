//! What can go wrong with a database.

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL names no database that we know.
    #[error("{0:?} is not a database; use sqlite:///path/to/file.db or postgres://user@host/name")]
    Url(String),
    /// The file could not be made private to this user.
    #[error("could not prepare the database file")]
    File(#[source] std::io::Error),
    /// The schema is not the one this version can work with.
    #[error("the database's schema could not be brought up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// The database belongs to an installation in another region.
    #[error("the database belongs to region {found}, this server is configured for {expected}")]
    Region {
        /// What the database says.
        found: domain::region::Region,
        /// What was asked for.
        expected: domain::region::Region,
    },
    /// The key under which keys of snapshots are kept cannot be used.
    #[error("the key of snapshots in {} {reason}", .path.display())]
    SealingKey {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong, and what to do.
        reason: String,
        /// Why, where the file itself is the trouble.
        source: Option<std::io::Error>,
    },
    /// What is kept of a snapshot's key is not what was kept.
    #[error(
        "the key of snapshot {0} cannot be opened; the database or the sealing key was changed"
    )]
    Sealed(domain::id::SnapshotId),
    /// The database did not answer, or not in time.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// A row holds something that this version cannot read.
    #[error("the database holds a {column} that cannot be read: {value:?}")]
    Corrupt {
        /// Name of the column.
        column: &'static str,
        /// What is in it. Columns that are read like this hold no secrets.
        value: String,
    },
    /// The database refused a statement.
    #[error("the database refused a statement")]
    Statement(#[source] sqlx::Error),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
            // A full disk, and a writer that held its lock for too long.
            sqlx::Error::Database(ref database)
                if database.code().is_some_and(|code| {
                    matches!(code.as_ref(), "5" | "13" | "53100" | "57P01" | "57P03" | "53300")
                }) =>
            {
                Self::Unavailable(error)
            }
            _ => Self::Statement(error),
        }
    }
}
