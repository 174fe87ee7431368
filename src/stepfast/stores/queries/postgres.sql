-- What only PostgreSQL needs.

-- name: notify
-- only: postgres
SELECT pg_notify(%(channel)s, topic) FROM unnest(%(topics)s::text[]) AS topic

-- name: end_if_idle
-- only: postgres
-- A client that vanished in the middle (a machine without power, a cut network) must not hold its locks for long.
SELECT set_config('idle_in_transaction_session_timeout', '10s', true)

-- name: one_at_a_time
-- only: postgres
-- Until the transaction ends. A claim passes over what others have locked, and so would one that is made again
-- while its first try is still under way; the two must not take different intents.
SELECT pg_advisory_xact_lock(hashtextextended(:name, 1))

-- name: insert_events_at_once
-- only: postgres
INSERT INTO sf.events (tenant, intent_id, seq, event_type, status, at, attempt, actor, details, data, digest, note_id)
SELECT * FROM unnest(
    %(tenant_s)s::text[], %(intent_id_s)s::text[], %(seq_s)s::bigint[], %(event_type_s)s::text[],
    %(status_s)s::text[], %(at_s)s::bigint[], %(attempt_s)s::bigint[], %(actor_s)s::text[], %(details_s)s::text[],
    %(data_s)s::bytea[], %(digest_s)s::bytea[], %(note_id_s)s::text[]
)

-- name: schema_version
-- only: postgres
SELECT COALESCE(MAX(number), 0) FROM sf.migrations

-- name: schema_lock
-- only: postgres
-- Held until the transaction ends, so that it holds behind a pooler, too.
SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))

-- name: schema_exists
-- only: postgres
SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = :schema

-- name: migrations_exist
-- only: postgres
SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = :schema AND tablename = 'migrations'

-- name: create_schema
-- only: postgres
CREATE SCHEMA {{schema}}

-- name: create_migrations
-- only: postgres
CREATE TABLE sf.migrations (
    number BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)

-- name: add_migration
-- only: postgres
INSERT INTO sf.migrations (number, name) VALUES (:number, :name)
