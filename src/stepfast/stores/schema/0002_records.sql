-- Documents of the platform: keys, accounts, controls, scenarios, timers. Small, versioned, written whole.
-- `due_at` makes one a timer that survives restarts; `belongs_to` is the intent it goes with, or empty.

-- name: records
CREATE TABLE sf.records (
    tenant {{text}} NOT NULL,
    kind {{text}} NOT NULL,
    record_id {{text}} NOT NULL,
    version BIGINT NOT NULL,
    body BYTEA NOT NULL,
    belongs_to {{text}} NOT NULL,
    due_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    write_id {{text}} NOT NULL,
    PRIMARY KEY (tenant, kind, record_id)
)

-- name: records_due
CREATE INDEX records_due ON sf.records (tenant, due_at) WHERE due_at IS NOT NULL

-- name: records_of_intent
CREATE INDEX records_of_intent ON sf.records (tenant, belongs_to, kind, record_id) WHERE belongs_to <> ''
