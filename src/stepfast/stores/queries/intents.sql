-- define: intent_columns
i.intent_id, i.run_id, i.journal_id, i.intent_type, i.to_agent, i.from_agent, i.correlation_id, i.payload, i.meta,
i.labels, i.status, i.waiting_reason, i.attempt, i.lost, i.max_delivery_attempts, i.claimable_at, i.leased,
i.lease_token, i.owner, i.deadline_at, i.created_at, i.updated_at, i.finished_at, i.result, i.error, i.reason,
i.total_steps, i.seq, i.head, i.idempotency_key, i.body_hash, i.revived_from, i.superseded_by

-- name: intent_by_id
SELECT {{intent_columns}} FROM sf.intents i WHERE i.tenant = :tenant AND i.intent_id = :intent_id

-- name: intent_by_run
-- Of the intents of a run, the one that none has taken over from.
SELECT {{intent_columns}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.run_id = :run_id AND i.superseded_by IS NULL

-- name: lock_intent
-- The row with the store's time, held until the transaction ends.
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.intent_id = :intent_id {{for_update}}

-- name: lock_intent_by_run
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.run_id = :run_id AND i.superseded_by IS NULL {{for_update}}

-- name: lock_intent_by_key
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.idempotency_key = :idempotency_key {{for_update}}

-- name: lock_latest_of_journal
-- Whoever carries a journal now: the intent that began it, or the last that revived it.
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.superseded_by IS NULL AND i.intent_id IN (
    SELECT :journal_id
    UNION ALL
    SELECT r.intent_id FROM sf.intents r
    WHERE r.tenant = :tenant AND r.journal_id = :journal_id AND r.revived_from IS NOT NULL
) {{for_update}}

-- name: time_and_attempts
-- The store's time, and how many delivery attempts are the rule for a type.
SELECT {{now}}, (
    SELECT t.max_delivery_attempts FROM sf.intent_types t WHERE t.tenant = :tenant AND t.intent_type = :intent_type
)

-- name: set_attempts_of_type
INSERT INTO sf.intent_types (tenant, intent_type, max_delivery_attempts)
VALUES (:tenant, :intent_type, :max_delivery_attempts)
ON CONFLICT (tenant, intent_type) DO UPDATE SET max_delivery_attempts = excluded.max_delivery_attempts

-- name: insert_intent
-- Refused where the id, the run or the idempotency key was taken since the plan looked: it looks again.
INSERT INTO sf.intents (
    tenant, intent_id, run_id, journal_id, intent_type, to_agent, from_agent, correlation_id, payload, meta, labels,
    status, waiting_reason, attempt, lost, max_delivery_attempts, claimable_at, leased, lease_token, owner,
    deadline_at, created_at, updated_at, finished_at, reason, total_steps, seq, head, idempotency_key, body_hash,
    revived_from
) VALUES (
    :tenant, :intent_id, :run_id, :journal_id, :intent_type, :to_agent, :from_agent, :correlation_id, :payload, :meta,
    :labels, :status, :waiting_reason, :attempt, :lost, :max_delivery_attempts, :claimable_at, :leased, :lease_token,
    :owner, :deadline_at, :created_at, :updated_at, :finished_at, :reason, :total_steps, :seq, :head,
    :idempotency_key, :body_hash, :revived_from
)

-- name: update_intent
-- Every change of an intent's state goes through here, together with the events that tell of it. Who supersedes it
-- is not among them: SQLite would write the index of runs anew with every change.
UPDATE sf.intents SET
    status = :status, waiting_reason = :waiting_reason, attempt = :attempt, lost = :lost,
    claimable_at = :claimable_at, leased = :leased, lease_token = :lease_token, owner = :owner,
    updated_at = :updated_at, finished_at = :finished_at, result = :result, error = :error, reason = :reason,
    total_steps = :total_steps, seq = :seq, head = :head
WHERE tenant = :tenant AND intent_id = :intent_id AND seq = :expected_seq

-- name: supersede_intent
UPDATE sf.intents SET superseded_by = :superseded_by WHERE tenant = :tenant AND intent_id = :intent_id

-- name: insert_label
INSERT INTO sf.labels (tenant, name, value, intent_id) VALUES (:tenant, :name, :value, :intent_id)
ON CONFLICT DO NOTHING

-- name: insert_event
-- SQLite writes several by repeating the row of values; PostgreSQL has insert_events_at_once.
INSERT INTO sf.events (tenant, intent_id, seq, event_type, status, at, attempt, actor, details, data, digest, note_id)
VALUES (:tenant, :intent_id, :seq, :event_type, :status, :at, :attempt, :actor, :details, :data, :digest, :note_id)

-- name: events_since
SELECT intent_id, seq, event_type, status, at, attempt, actor, details, data, digest FROM sf.events
WHERE tenant = :tenant AND intent_id = :intent_id AND seq > :since ORDER BY seq LIMIT :limit

-- name: event_of_note
SELECT seq FROM sf.events WHERE tenant = :tenant AND intent_id = :intent_id AND note_id = :note_id

-- name: list_intents
-- Newest first. The two label parameters are an index look-up; further labels are checked on the page.
SELECT {{intent_columns}} FROM sf.intents i
WHERE i.tenant = :tenant
  AND (CAST(:before AS TEXT) IS NULL OR i.intent_id < :before)
  AND (CAST(:to_agent AS TEXT) IS NULL OR i.to_agent = :to_agent)
  AND (CAST(:intent_type AS TEXT) IS NULL OR i.intent_type = :intent_type)
  AND (CAST(:any_status AS BIGINT) = 1 OR i.status IN (:s1, :s2, :s3, :s4, :s5, :s6, :s7, :s8, :s9))
  AND (CAST(:label_name AS TEXT) IS NULL OR i.intent_id IN (
      SELECT l.intent_id FROM sf.labels l
      WHERE l.tenant = :tenant AND l.name = :label_name AND l.value = :label_value
  ))
ORDER BY i.intent_id DESC LIMIT :limit
