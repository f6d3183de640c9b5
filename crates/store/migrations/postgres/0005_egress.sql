-- What a sandbox may reach. `network` is the mode and stays where it is.
ALTER TABLE sandboxes ADD COLUMN egress_allow TEXT NOT NULL DEFAULT '[]';
-- The same with presets written out, so that a later version of a preset or of
-- an image changes nothing that was agreed.
ALTER TABLE sandboxes ADD COLUMN egress_entries TEXT NOT NULL DEFAULT '[]';
ALTER TABLE sandboxes ADD COLUMN egress_generation BIGINT NOT NULL DEFAULT 1;

CREATE TABLE sessions (
    id           TEXT   PRIMARY KEY,
    sandbox      TEXT   NOT NULL REFERENCES sandboxes (id),
    organization TEXT   NOT NULL REFERENCES organizations (id),
    owner        TEXT   NOT NULL REFERENCES users (id),
    region       TEXT   NOT NULL,
    -- Its account inside.
    uid          BIGINT NOT NULL,
    attended     BIGINT NOT NULL,
    created      BIGINT NOT NULL,
    ended        BIGINT
);
-- An account belongs to one session at a time.
CREATE UNIQUE INDEX sessions_by_account ON sessions (sandbox, uid) WHERE ended IS NULL;

-- One line for each decision of the gateway. Unlike the audit log it is pruned.
CREATE TABLE egress_log (
    sequence     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organization TEXT   NOT NULL,
    sandbox      TEXT   NOT NULL,
    session      TEXT,
    uid          BIGINT,
    time         BIGINT NOT NULL,
    front        TEXT   NOT NULL,
    destination  TEXT   NOT NULL,
    rule         TEXT   NOT NULL,
    outcome      TEXT   NOT NULL,
    bytes_out    BIGINT NOT NULL,
    bytes_in     BIGINT NOT NULL,
    duration_ms  BIGINT NOT NULL,
    -- How many lines of this sandbox were left out before this one.
    dropped      BIGINT NOT NULL
);
CREATE INDEX egress_log_by_organization ON egress_log (organization, sequence);
CREATE INDEX egress_log_by_sandbox ON egress_log (organization, sandbox, sequence);
