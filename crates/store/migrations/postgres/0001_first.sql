-- Ids and words are TEXT, times are milliseconds since 1970, JSON is TEXT.
-- The same statements run on both databases; only what marks a difference here
-- differs: the audit log's sequence and the way it is made append-only.

CREATE TABLE installation (
    only_row BIGINT PRIMARY KEY CHECK (only_row = 1),
    region   TEXT   NOT NULL,
    created  BIGINT NOT NULL
);

CREATE TABLE organizations (
    id         TEXT   PRIMARY KEY,
    name       TEXT   NOT NULL,
    region     TEXT   NOT NULL,
    created    BIGINT NOT NULL,
    -- Counts reservations of a sandbox slot; its update is the lock under which
    -- sandboxes are counted.
    generation BIGINT NOT NULL
);

CREATE TABLE users (
    id           TEXT   PRIMARY KEY,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    name         TEXT   NOT NULL,
    region       TEXT   NOT NULL,
    created      BIGINT NOT NULL,
    UNIQUE (organization, name)
);

CREATE TABLE tokens (
    id           TEXT   PRIMARY KEY,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    owner        TEXT   NOT NULL REFERENCES users (id),
    region       TEXT   NOT NULL,
    -- SHA-256 of the token's text. The text itself is nowhere.
    hash         TEXT   NOT NULL UNIQUE,
    scopes       TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    created      BIGINT NOT NULL,
    revoked      BIGINT
);
CREATE INDEX tokens_by_organization ON tokens (organization, created, id);

CREATE TABLE sandboxes (
    id           TEXT   PRIMARY KEY,
    alias        TEXT   NOT NULL UNIQUE,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    owner        TEXT   NOT NULL REFERENCES users (id),
    region       TEXT   NOT NULL,
    template     TEXT   NOT NULL,
    image        TEXT   NOT NULL,
    size         TEXT,
    cpus         BIGINT NOT NULL,
    memory_mib   BIGINT NOT NULL,
    disk_mib     BIGINT NOT NULL,
    processes    BIGINT NOT NULL,
    network      TEXT   NOT NULL,
    phase        TEXT   NOT NULL,
    -- Why it is to end, recorded before anything is done about it.
    intent       TEXT,
    cause        TEXT,
    detail       TEXT,
    metadata     TEXT   NOT NULL,
    timeout_ms   BIGINT NOT NULL,
    created      BIGINT NOT NULL,
    started      BIGINT,
    ended        BIGINT,
    expires      BIGINT,
    -- SHA-256 over the caller and the key that they chose.
    idempotency  TEXT   UNIQUE,
    -- SHA-256 over what was asked, without any value of the environment.
    request      TEXT   NOT NULL,
    generation   BIGINT NOT NULL
);
CREATE INDEX sandboxes_by_organization ON sandboxes (organization, created, id);
CREATE INDEX sandboxes_by_phase ON sandboxes (phase);

CREATE TABLE audit (
    sequence     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT   NOT NULL UNIQUE,
    time         BIGINT NOT NULL,
    organization TEXT   NOT NULL,
    -- Absent where the system itself acted.
    actor        TEXT,
    token        TEXT,
    action       TEXT   NOT NULL,
    object       TEXT,
    outcome      TEXT   NOT NULL,
    detail       TEXT   NOT NULL
);
CREATE INDEX audit_by_organization ON audit (organization, sequence);
CREATE INDEX audit_by_object ON audit (organization, object, sequence);

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();
