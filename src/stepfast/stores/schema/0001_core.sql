-- The durable core. One file serves SQLite and PostgreSQL: SQLite takes any type name, and blocks
-- marked `only:` belong to one of them; text compares byte by byte in both. Each block is one
-- statement. Times are microseconds since the epoch by the store's clock. Every key leads with the tenant and the intent or its journal, so
-- that no row of one intent needs another's; nothing is counted across intents.
--
-- The life of an intent, in columns: `claimable_at` alone says when a worker may take it. It is the
-- creation time (or a later start) while the intent is fresh, the end of the lease while `leased`
-- is 1, the end of the back-off after a release, and NULL while the intent waits for a person or is
-- finished. So one partial index serves claiming however many finished intents there are. `attempt`
-- rises with every claim and fences every write; `lost` counts the deliveries that were lost in a row without a
-- newly finished step.
--
-- `journal_id` is the intent's own id, or that of the intent it revives: steps, decisions,
-- checkpoints and pieces hang on it, so a revived intent finds all that was finished.

-- name: intents
CREATE TABLE sf.intents (
    tenant {{text}} NOT NULL,
    intent_id {{text}} NOT NULL,
    run_id {{text}},
    journal_id {{text}} NOT NULL,
    intent_type {{text}} NOT NULL,
    to_agent {{text}} NOT NULL,
    from_agent {{text}},
    correlation_id {{text}},
    payload BYTEA,
    meta BYTEA,
    labels {{text}} NOT NULL,
    status {{text}} NOT NULL,
    waiting_reason {{text}},
    attempt BIGINT NOT NULL,
    lost BIGINT NOT NULL,
    max_delivery_attempts BIGINT NOT NULL,
    claimable_at BIGINT,
    leased BIGINT NOT NULL,
    lease_token {{text}},
    owner {{text}},
    deadline_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    finished_at BIGINT,
    result BYTEA,
    error BYTEA,
    reason {{text}},
    total_steps BIGINT,
    seq BIGINT NOT NULL,
    head BYTEA NOT NULL,
    idempotency_key {{text}},
    body_hash BYTEA,
    revived_from {{text}},
    superseded_by {{text}},
    PRIMARY KEY (tenant, intent_id)
)

-- name: intents_by_key
CREATE UNIQUE INDEX intents_by_key ON sf.intents (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL

-- name: intents_by_run
CREATE UNIQUE INDEX intents_by_run ON sf.intents (tenant, run_id) WHERE run_id IS NOT NULL AND superseded_by IS NULL

-- name: intents_to_claim
CREATE INDEX intents_to_claim ON sf.intents (tenant, to_agent, claimable_at) WHERE claimable_at IS NOT NULL

-- name: intents_by_deadline
CREATE INDEX intents_by_deadline ON sf.intents (tenant, deadline_at) WHERE deadline_at IS NOT NULL AND finished_at IS NULL

-- name: intents_finished
CREATE INDEX intents_finished ON sf.intents (tenant, finished_at) WHERE finished_at IS NOT NULL

-- name: intents_open
CREATE INDEX intents_open ON sf.intents (tenant, status, intent_id) WHERE finished_at IS NULL

-- name: intents_by_journal
CREATE INDEX intents_by_journal ON sf.intents (tenant, journal_id) WHERE revived_from IS NOT NULL

-- name: labels
CREATE TABLE sf.labels (
    tenant {{text}} NOT NULL,
    name {{text}} NOT NULL,
    value {{text}} NOT NULL,
    intent_id {{text}} NOT NULL,
    PRIMARY KEY (tenant, name, value, intent_id)
) {{clustered}}

-- name: labels_by_intent
CREATE INDEX labels_by_intent ON sf.labels (tenant, intent_id)

-- name: intent_types
CREATE TABLE sf.intent_types (
    tenant {{text}} NOT NULL,
    intent_type {{text}} NOT NULL,
    max_delivery_attempts BIGINT NOT NULL,
    PRIMARY KEY (tenant, intent_type)
)

-- name: events
CREATE TABLE sf.events (
    tenant {{text}} NOT NULL,
    intent_id {{text}} NOT NULL,
    seq BIGINT NOT NULL,
    event_type {{text}} NOT NULL,
    status {{text}} NOT NULL,
    at BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    actor {{text}} NOT NULL,
    details {{text}} NOT NULL,
    data BYTEA,
    digest BYTEA NOT NULL,
    note_id {{text}},
    PRIMARY KEY (tenant, intent_id, seq)
) {{clustered}}

-- name: events_one_ending
CREATE UNIQUE INDEX events_one_ending ON sf.events (tenant, intent_id)
WHERE event_type IN ('intent.completed', 'intent.failed', 'intent.canceled', 'intent.timed_out')

-- name: events_by_note
CREATE UNIQUE INDEX events_by_note ON sf.events (tenant, intent_id, note_id) WHERE note_id IS NOT NULL

-- name: events_are_not_changed
-- only: sqlite
CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON sf.events
BEGIN
    SELECT RAISE(ABORT, 'the history is append-only');
END

-- name: events_are_not_deleted
-- only: sqlite
CREATE TRIGGER events_are_not_deleted BEFORE DELETE ON sf.events
WHEN EXISTS (SELECT 1 FROM sf.intents i WHERE i.tenant = OLD.tenant AND i.intent_id = OLD.intent_id)
BEGIN
    SELECT RAISE(ABORT, 'the history is append-only');
END

-- name: events_guard_function
-- only: postgres
CREATE FUNCTION sf.events_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (
        SELECT 1 FROM sf.intents i WHERE i.tenant = OLD.tenant AND i.intent_id = OLD.intent_id
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the history is append-only';
END
$$

-- name: events_guard
-- only: postgres
CREATE TRIGGER events_guard BEFORE UPDATE OR DELETE ON sf.events FOR EACH ROW EXECUTE FUNCTION sf.events_guard()

-- name: steps
-- Clustered on the journal where the database can: opening a run is one range scan.
CREATE TABLE sf.steps (
    tenant {{text}} NOT NULL,
    journal_id {{text}} NOT NULL,
    key {{text}} NOT NULL,
    generation BIGINT NOT NULL,
    position BIGINT NOT NULL,
    kind {{text}} NOT NULL,
    name {{text}} NOT NULL,
    scope {{text}} NOT NULL,
    status {{text}} NOT NULL,
    input_hash BYTEA NOT NULL,
    preview BYTEA NOT NULL,
    result BYTEA,
    error BYTEA,
    blob_id {{text}},
    attempt BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    finished_at BIGINT,
    seal BYTEA NOT NULL,
    voided BIGINT NOT NULL,
    tally BIGINT NOT NULL,
    PRIMARY KEY (tenant, journal_id, key, generation)
) {{clustered}}

-- name: decisions
CREATE TABLE sf.decisions (
    tenant {{text}} NOT NULL,
    journal_id {{text}} NOT NULL,
    key {{text}} NOT NULL,
    intent_id {{text}} NOT NULL,
    kind {{text}} NOT NULL,
    question BYTEA NOT NULL,
    outcomes {{text}} NOT NULL,
    comment_required BIGINT NOT NULL,
    asked_at BIGINT NOT NULL,
    expires_at BIGINT,
    default_outcome {{text}},
    attempt BIGINT NOT NULL,
    outcome {{text}},
    value BYTEA,
    comment BYTEA,
    actor {{text}},
    answered_at BIGINT,
    PRIMARY KEY (tenant, journal_id, key)
)

-- name: decisions_pending
CREATE INDEX decisions_pending ON sf.decisions (tenant, asked_at) WHERE outcome IS NULL

-- name: decisions_expiring
CREATE INDEX decisions_expiring ON sf.decisions (tenant, expires_at) WHERE outcome IS NULL AND expires_at IS NOT NULL

-- name: checkpoints
CREATE TABLE sf.checkpoints (
    tenant {{text}} NOT NULL,
    journal_id {{text}} NOT NULL,
    version BIGINT NOT NULL,
    pin {{text}},
    state BYTEA NOT NULL,
    meta BYTEA NOT NULL,
    blob_id {{text}},
    attempt BIGINT NOT NULL,
    at BIGINT NOT NULL,
    seal BYTEA NOT NULL,
    PRIMARY KEY (tenant, journal_id, version)
)

-- name: pieces
CREATE TABLE sf.pieces (
    tenant {{text}} NOT NULL,
    journal_id {{text}} NOT NULL,
    blob_id {{text}} NOT NULL,
    number BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (tenant, journal_id, blob_id, number)
)

-- name: health
CREATE TABLE sf.health (
    tenant {{text}} NOT NULL PRIMARY KEY,
    checked_at BIGINT NOT NULL
)
