-- name: record_step
-- The fence and the write are one statement: no row of `owned`, no step.
INSERT INTO sf.steps (
    tenant, journal_id, key, generation, position, kind, name, scope, status, input_hash, preview, result, error,
    blob_id, attempt, started_at, finished_at, seal, voided, tally
)
WITH owned AS (
    SELECT i.journal_id FROM sf.intents i
    WHERE i.tenant = :tenant AND i.intent_id = :intent_id AND i.attempt = :lease_attempt
      AND i.lease_token = :lease_token AND i.leased = 1 AND i.journal_id = :journal_id
      AND (i.deadline_at IS NULL OR i.deadline_at > {{now}})
    {{for_share}}
)
SELECT :tenant, owned.journal_id, :key, :generation, :position, :kind, :name, :scope, :status, :input_hash, :preview,
       :result, :error, :blob_id, :attempt, :started_at, :finished_at, :seal, 0, :tally
FROM owned WHERE true
ON CONFLICT DO NOTHING

-- name: record_steps_at_once
-- only: postgres
-- The same for the steps of many runs in one journey; gives the rows it wrote. The look at each intent is a
-- subquery of its own, so that no plan made while the table was small reads all of it when it has grown.
INSERT INTO sf.steps (
    tenant, journal_id, key, generation, position, kind, name, scope, status, input_hash, preview, result, error,
    blob_id, attempt, started_at, finished_at, seal, voided, tally
)
SELECT t.tenant, t.journal_id, t.key, t.generation, t.position, t.kind, t.name, t.scope, t.status, t.input_hash,
       t.preview, t.result, t.error, t.blob_id, t.attempt, t.started_at, t.finished_at, t.seal, 0, t.tally
FROM unnest(
    %(tenant_s)s::text[], %(intent_id_s)s::text[], %(lease_attempt_s)s::bigint[], %(lease_token_s)s::text[],
    %(journal_id_s)s::text[], %(key_s)s::text[], %(generation_s)s::bigint[], %(position_s)s::bigint[],
    %(kind_s)s::text[], %(name_s)s::text[], %(scope_s)s::text[], %(status_s)s::text[], %(input_hash_s)s::bytea[],
    %(preview_s)s::bytea[], %(result_s)s::bytea[], %(error_s)s::bytea[], %(blob_id_s)s::text[],
    %(attempt_s)s::bigint[], %(started_at_s)s::bigint[], %(finished_at_s)s::bigint[], %(seal_s)s::bytea[],
    %(tally_s)s::bigint[]
) AS t(tenant, intent_id, lease_attempt, lease_token, journal_id, key, generation, position, kind, name, scope,
       status, input_hash, preview, result, error, blob_id, attempt, started_at, finished_at, seal, tally)
CROSS JOIN LATERAL (
    SELECT i.intent_id FROM sf.intents i
    WHERE i.tenant = t.tenant AND i.intent_id = t.intent_id AND i.attempt = t.lease_attempt
      AND i.lease_token = t.lease_token AND i.leased = 1 AND i.journal_id = t.journal_id
      AND (i.deadline_at IS NULL OR i.deadline_at > {{now}})
    FOR SHARE
) owned
ON CONFLICT DO NOTHING
RETURNING tenant, journal_id, key, generation

-- name: settle_step
UPDATE sf.steps SET
    status = :status, result = :result, error = :error, blob_id = :blob_id, finished_at = :finished_at, seal = :seal,
    preview = :preview, attempt = :attempt
WHERE tenant = :tenant AND key = :key AND generation = :generation
  AND status = 'STARTED' AND voided = 0 AND journal_id = (
    SELECT i.journal_id FROM sf.intents i
    WHERE i.tenant = :tenant AND i.intent_id = :intent_id AND i.attempt = :lease_attempt
      AND i.lease_token = :lease_token AND i.leased = 1 AND i.journal_id = :journal_id
    {{for_share}}
)

-- name: step_by_key
SELECT key, generation, position, kind, name, scope, status, input_hash, preview, result, error, blob_id, attempt,
       started_at, finished_at, seal, voided, tally
FROM sf.steps WHERE tenant = :tenant AND journal_id = :journal_id AND key = :key AND generation = :generation

-- name: journal
SELECT key, generation, position, kind, name, scope, status, input_hash, preview, result, error, blob_id, attempt,
       started_at, finished_at, seal, voided, tally
FROM sf.steps WHERE tenant = :tenant AND journal_id = :journal_id AND voided <= :voided ORDER BY position, generation

-- name: finished_by_attempt
-- Whether an attempt finished a step. No index serves it, since each step would pay for that; it is asked when a
-- delivery was lost, and the next one reads the whole journal anyway.
SELECT 1 FROM sf.steps
WHERE tenant = :tenant AND journal_id = :journal_id AND attempt = :attempt AND voided = 0 AND status <> 'STARTED'
LIMIT 1

-- name: step_voided
SELECT voided FROM sf.steps
WHERE tenant = :tenant AND journal_id = :journal_id AND key = :key AND generation = :generation

-- name: void_step
UPDATE sf.steps SET voided = 1
WHERE tenant = :tenant AND journal_id = :journal_id AND key = :key AND generation = :generation

-- name: progress
SELECT CAST(COALESCE(SUM(CASE WHEN scope = '' AND status <> 'STARTED' AND kind NOT IN ('checkpoint', 'patch') THEN 1 ELSE 0 END), 0) AS BIGINT),
       CAST(COALESCE(SUM(CASE WHEN status <> 'STARTED' THEN tally ELSE 0 END), 0) AS BIGINT),
       MAX(CASE WHEN scope = '' AND status <> 'STARTED' AND kind NOT IN ('checkpoint', 'patch') THEN position END)
FROM sf.steps WHERE tenant = :tenant AND journal_id = :journal_id AND voided = 0

-- name: step_at
SELECT name FROM sf.steps
WHERE tenant = :tenant AND journal_id = :journal_id AND scope = '' AND position = :position AND voided = 0

-- name: last_report
SELECT details FROM sf.events
WHERE tenant = :tenant AND intent_id = :intent_id AND event_type = 'intent.progress' ORDER BY seq DESC LIMIT 1

-- name: insert_piece
INSERT INTO sf.pieces (tenant, journal_id, blob_id, number, data)
VALUES (:tenant, :journal_id, :blob_id, :number, :data) ON CONFLICT DO NOTHING

-- name: piece
SELECT data FROM sf.pieces
WHERE tenant = :tenant AND journal_id = :journal_id AND blob_id = :blob_id AND number = :number
