-- What was built from a description, and the steps on the way to it.

CREATE TABLE templates (
    id           TEXT   PRIMARY KEY,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    owner        TEXT   NOT NULL REFERENCES users (id),
    region       TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    -- What its FROM says.
    base         TEXT   NOT NULL,
    -- Digest of everything that decided what it is.
    build_key    TEXT   NOT NULL,
    -- What sandboxes start from.
    snapshot     TEXT   NOT NULL,
    image        TEXT   NOT NULL,
    image_name   TEXT   NOT NULL,
    size         TEXT,
    cpus         BIGINT NOT NULL,
    memory_mib   BIGINT NOT NULL,
    disk_mib     BIGINT NOT NULL,
    processes    BIGINT NOT NULL,
    -- Where the steps of a template that starts from this one begin.
    workdir      TEXT   NOT NULL,
    account      TEXT   NOT NULL,
    created      BIGINT NOT NULL,
    built        BIGINT NOT NULL,
    UNIQUE (organization, name)
);

-- What a step came to, so that the same step is not done again.
CREATE TABLE template_steps (
    organization TEXT   NOT NULL REFERENCES organizations (id),
    step_key     TEXT   NOT NULL,
    snapshot     TEXT   NOT NULL,
    -- The template that used it last; it goes with that one.
    template     TEXT   NOT NULL,
    used         BIGINT NOT NULL,
    PRIMARY KEY (organization, step_key)
);

-- Sandboxes in which templates are being built. One that outlives its build is
-- removed at the next start.
CREATE TABLE template_builds (
    sandbox      TEXT   PRIMARY KEY,
    organization TEXT   NOT NULL REFERENCES organizations (id),
    created      BIGINT NOT NULL
);
