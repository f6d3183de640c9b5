//! Opening a database and reaching it.
//!
//! SQLite has one writer: all writing goes through a pool of one connection and
//! begins with `BEGIN IMMEDIATE`, because a transaction that reads first and
//! writes later can fail with "database is locked" however long it is willing to
//! wait. Readers have connections of their own and never wait for the writer.
//!
//! SQLite runs with `synchronous=FULL`. In WAL mode `NORMAL` would survive a
//! killed process too, but after a power cut it may forget the last commits: a
//! revoked token would work again, and audit lines would be missing. One flush
//! for each commit is the price.
//!
//! A file is made readable by its owner only before anything is written to it.

use std::{
    fs::{OpenOptions, Permissions},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use sqlx::{
    PgPool, SqlitePool,
    migrate::Migrator,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{
    error::StoreError,
    sealing::Sealing,
    sql::{Row, Transaction, Value, bound, bounded},
};

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

/// How long a statement may wait for a connection or for the writer's lock.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that only read.
const READERS: u32 = 4;
/// Connections to Postgres.
const POSTGRES_CONNECTIONS: u32 = 16;

/// The database of an installation. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    database: Database,
    sealing: Option<Arc<Sealing>>,
}

#[derive(Clone, Debug)]
enum Database {
    Sqlite { writer: SqlitePool, readers: SqlitePool },
    Postgres(PgPool),
}

impl Store {
    /// Opens the database at `url` and brings its schema up to date.
    ///
    /// `sqlite:///path/file.db` (made if missing), `sqlite::memory:` or
    /// `postgres://user@host/name`.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let database = if url == "sqlite::memory:" {
            open_memory().await?
        } else if let Some(path) = url.strip_prefix("sqlite://") {
            open_file(Path::new(path)).await?
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            open_postgres(url).await?
        } else {
            return Err(StoreError::Url(without_credentials(url)));
        };
        Ok(Self { database, sealing: None })
    }

    /// The same store, which keeps keys of snapshots under `sealing`.
    pub fn with_sealing(self, sealing: Sealing) -> Self {
        Self { sealing: Some(Arc::new(sealing)), ..self }
    }

    pub(crate) fn sealing(&self) -> Option<&Sealing> {
        self.sealing.as_deref()
    }

    /// Closes every connection, so that a file is complete without its log.
    pub async fn close(&self) {
        match &self.database {
            Database::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            Database::Postgres(pool) => pool.close().await,
        }
    }

    /// Whether the database answers.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.fetch_optional("SELECT region FROM installation", Vec::new()).await.map(drop)
    }

    /// Begins a transaction that will write.
    pub(crate) async fn begin(&self) -> Result<Transaction, StoreError> {
        Ok(match &self.database {
            Database::Sqlite { writer, .. } => {
                Transaction::Sqlite(bounded(writer.begin_with("BEGIN IMMEDIATE")).await?)
            }
            Database::Postgres(pool) => Transaction::Postgres(bounded(pool.begin()).await?),
        })
    }

    /// Reads at most one row, outside of any transaction.
    pub(crate) async fn fetch_optional(
        &self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(match &self.database {
            Database::Sqlite { readers, .. } => {
                bounded(bound!(sql, values).fetch_optional(readers)).await?.map(Row::Sqlite)
            }
            Database::Postgres(pool) => {
                bounded(bound!(sql, values).fetch_optional(pool)).await?.map(Row::Postgres)
            }
        })
    }

    /// Reads rows, outside of any transaction. Every caller bounds their number.
    pub(crate) async fn fetch_all(
        &self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, StoreError> {
        Ok(match &self.database {
            Database::Sqlite { readers, .. } => {
                let rows = bounded(bound!(sql, values).fetch_all(readers)).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
            Database::Postgres(pool) => {
                let rows = bounded(bound!(sql, values).fetch_all(pool)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
        })
    }
}

async fn open_file(path: &Path) -> Result<Database, StoreError> {
    make_private(path).map_err(StoreError::File)?;
    let options = sqlite_options().filename(path);
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(PATIENCE)
        .connect_with(options.clone())
        .await?;
    SQLITE.run(&writer).await.map_err(StoreError::Migrate)?;
    let readers = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(PATIENCE)
        .connect_with(options.read_only(true))
        .await?;
    Ok(Database::Sqlite { writer, readers })
}

/// A database in memory belongs to one connection, which then does everything.
async fn open_memory() -> Result<Database, StoreError> {
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .min_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(PATIENCE)
        .connect_with(sqlite_options().in_memory(true))
        .await?;
    SQLITE.run(&pool).await.map_err(StoreError::Migrate)?;
    Ok(Database::Sqlite { writer: pool.clone(), readers: pool })
}

async fn open_postgres(url: &str) -> Result<Database, StoreError> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|_| StoreError::Url(without_credentials(url)))?
        .application_name("coldframe");
    let pool = |connections: u32, options| {
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(PATIENCE)
            .connect_with(options)
    };
    // A migration may take as long as it takes; a request may not.
    let migrating = pool(1, options.clone()).await?;
    POSTGRES.run(&migrating).await.map_err(StoreError::Migrate)?;
    migrating.close().await;
    let patience = PATIENCE.as_millis().to_string();
    let options = options.options([
        ("statement_timeout", patience.as_str()),
        ("idle_in_transaction_session_timeout", patience.as_str()),
    ]);
    let pool = pool(POSTGRES_CONNECTIONS, options).await?;
    Ok(Database::Postgres(pool))
}

fn sqlite_options() -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // What was a snapshot's key is overwritten, not only let go of.
        .pragma("secure_delete", "ON")
        .busy_timeout(PATIENCE)
}

/// Makes the file if it is missing, readable and writable by its owner only.
///
/// SQLite gives its log files the mode of the database.
fn make_private(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

/// The scheme alone: what follows may hold a password.
fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, _)) => format!("{}://…", scheme.chars().take(20).collect::<String>()),
        None => "…".to_owned(),
    }
}
