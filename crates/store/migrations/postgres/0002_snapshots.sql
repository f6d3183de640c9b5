-- What a sandbox can be started from again, and how a sandbox rests.

CREATE TABLE snapshots (
    id           TEXT   PRIMARY KEY,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    owner        TEXT   NOT NULL REFERENCES users (id),
    region       TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    -- What it is for: a pause, a name, or the copies of one request.
    purpose      TEXT   NOT NULL,
    -- Present exactly where somebody gave one, until it goes.
    name         TEXT,
    -- Which sandbox was captured, and what that one was made of.
    sandbox      TEXT   NOT NULL,
    template     TEXT   NOT NULL,
    image        TEXT   NOT NULL,
    size         TEXT,
    cpus         BIGINT NOT NULL,
    memory_mib   BIGINT NOT NULL,
    disk_mib     BIGINT NOT NULL,
    processes    BIGINT NOT NULL,
    -- making, ready, going
    state        TEXT   NOT NULL,
    -- Its key, encrypted under the key of the installation; gone from the moment
    -- the snapshot is to go.
    sealed_key   TEXT,
    stored_bytes BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    -- The snapshot that its sandbox was started from.
    parent       TEXT,
    created      BIGINT NOT NULL,
    expires      BIGINT,
    UNIQUE (organization, name)
);
CREATE INDEX snapshots_by_organization ON snapshots (organization, created, id);
CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox);
CREATE INDEX snapshots_by_state ON snapshots (state);

-- What happens at the time limit: terminate, pause.
ALTER TABLE sandboxes ADD COLUMN on_timeout TEXT NOT NULL DEFAULT 'terminate';
-- Paused after so long without use.
ALTER TABLE sandboxes ADD COLUMN idle_ms BIGINT;
-- Whether its next use resumes it.
ALTER TABLE sandboxes ADD COLUMN auto_resume BIGINT NOT NULL DEFAULT 0;
-- The snapshot that it was started from.
ALTER TABLE sandboxes ADD COLUMN parent TEXT;
ALTER TABLE sandboxes ADD COLUMN paused BIGINT;
-- What is left of its time while it is paused.
ALTER TABLE sandboxes ADD COLUMN remaining_ms BIGINT;
-- Whether it is being resumed, which takes a place among those that run.
ALTER TABLE sandboxes ADD COLUMN waking BIGINT NOT NULL DEFAULT 0;
