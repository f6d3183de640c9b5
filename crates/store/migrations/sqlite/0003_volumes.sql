CREATE TABLE volumes (
    id           TEXT   PRIMARY KEY,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    owner        TEXT   NOT NULL REFERENCES users (id),
    region       TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    size_mib     BIGINT NOT NULL,
    state        TEXT   NOT NULL,
    -- Why it could not be made.
    detail       TEXT,
    -- The checkpoint that it was restored from.
    source       TEXT,
    created      BIGINT NOT NULL,
    generation   BIGINT NOT NULL,
    UNIQUE (organization, name)
);

-- The lease on a volume. A row whose sandbox has ended counts as absent, so that
-- a lease ends in the transaction that records the end.
CREATE TABLE attachments (
    volume  TEXT   PRIMARY KEY REFERENCES volumes (id),
    sandbox TEXT   NOT NULL REFERENCES sandboxes (id),
    slot    BIGINT NOT NULL,
    path    TEXT   NOT NULL,
    state   TEXT   NOT NULL,
    since   BIGINT NOT NULL
);
CREATE INDEX attachments_by_sandbox ON attachments (sandbox);

CREATE TABLE checkpoints (
    id           TEXT   PRIMARY KEY,
    volume       TEXT   NOT NULL REFERENCES volumes (id),
    organization TEXT   NOT NULL REFERENCES organizations (id),
    region       TEXT   NOT NULL,
    size_mib     BIGINT NOT NULL,
    state        TEXT   NOT NULL,
    detail       TEXT,
    -- What a restore reads, and what of it this checkpoint was the first to keep.
    data_bytes   BIGINT NOT NULL,
    stored_bytes BIGINT NOT NULL,
    -- SHA-256 of the manifest. A manifest that differs is not this checkpoint's.
    manifest     TEXT,
    created      BIGINT NOT NULL,
    finished     BIGINT
);
CREATE INDEX checkpoints_by_volume ON checkpoints (volume, created, id);
