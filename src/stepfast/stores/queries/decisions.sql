-- define: decision_columns
d.journal_id, d.key, d.intent_id, d.kind, d.question, d.outcomes, d.comment_required, d.asked_at, d.expires_at,
d.default_outcome, d.attempt, d.outcome, d.value, d.comment, d.actor, d.answered_at

-- name: decision
SELECT {{decision_columns}} FROM sf.decisions d
WHERE d.tenant = :tenant AND d.journal_id = :journal_id AND d.key = :key

-- name: insert_decision
INSERT INTO sf.decisions (
    tenant, journal_id, key, intent_id, kind, question, outcomes, comment_required, asked_at, expires_at,
    default_outcome, attempt
) VALUES (
    :tenant, :journal_id, :key, :intent_id, :kind, :question, :outcomes, :comment_required, :asked_at, :expires_at,
    :default_outcome, :attempt
)

-- name: answer_decision
UPDATE sf.decisions SET outcome = :outcome, value = :value, comment = :comment, actor = :actor,
    answered_at = :answered_at
WHERE tenant = :tenant AND journal_id = :journal_id AND key = :key AND outcome IS NULL

-- name: answered_of_intent
SELECT key FROM sf.decisions
WHERE tenant = :tenant AND key = :key AND outcome IS NOT NULL AND journal_id = (
    SELECT i.journal_id FROM sf.intents i WHERE i.tenant = :tenant AND i.intent_id = :intent_id
)

-- name: list_decisions
SELECT {{decision_columns}} FROM sf.decisions d
WHERE d.tenant = :tenant AND (CAST(:journal_id AS TEXT) IS NULL OR d.journal_id = :journal_id)
  AND (CAST(:pending AS BIGINT) = 0 OR d.outcome IS NULL)
ORDER BY d.asked_at LIMIT :limit

-- name: expired_decisions
SELECT {{decision_columns}}, {{now}} FROM sf.decisions d
WHERE d.tenant = :tenant AND d.outcome IS NULL AND d.expires_at IS NOT NULL AND d.expires_at <= {{moment}}
ORDER BY d.expires_at LIMIT :limit

-- define: version_columns
c.journal_id, c.version, c.pin, c.state, c.meta, c.blob_id, c.attempt, c.at, c.seal

-- name: insert_checkpoint
INSERT INTO sf.checkpoints (tenant, journal_id, version, pin, state, meta, blob_id, attempt, at, seal)
VALUES (:tenant, :journal_id, :version, :pin, :state, :meta, :blob_id, :attempt, :at, :seal)
ON CONFLICT DO NOTHING

-- name: unpin_checkpoints
-- A name pins one version: the newest that took it.
UPDATE sf.checkpoints SET pin = NULL
WHERE tenant = :tenant AND journal_id = :journal_id AND pin = :pin AND version < :version

-- name: drop_pieces_of_old_checkpoints
DELETE FROM sf.pieces WHERE tenant = :tenant AND journal_id = :journal_id AND blob_id IN (
    SELECT blob_id FROM sf.checkpoints
    WHERE tenant = :tenant AND journal_id = :journal_id AND version <= :upto AND pin IS NULL AND blob_id IS NOT NULL
)

-- name: drop_old_checkpoints
DELETE FROM sf.checkpoints
WHERE tenant = :tenant AND journal_id = :journal_id AND version <= :upto AND pin IS NULL

-- name: checkpoint
SELECT {{version_columns}} FROM sf.checkpoints c
WHERE c.tenant = :tenant AND c.journal_id = :journal_id AND c.version = :version

-- name: read_checkpoints
SELECT {{version_columns}} FROM sf.checkpoints c
WHERE c.tenant = :tenant AND c.journal_id = :journal_id
  AND (CAST(:version AS BIGINT) IS NULL OR c.version = :version)
  AND (CAST(:pin AS TEXT) IS NULL OR c.pin = :pin)
ORDER BY c.version DESC LIMIT :limit
