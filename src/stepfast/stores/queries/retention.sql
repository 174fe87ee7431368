-- name: prunable
-- Finished intents, oldest ending first. What another intent revived goes with the last of them.
SELECT i.intent_id, i.journal_id FROM sf.intents i
WHERE i.tenant = :tenant AND i.finished_at IS NOT NULL
  AND (CAST(:finished_before AS BIGINT) IS NULL OR i.finished_at < :finished_before)
  AND (CAST(:any_status AS BIGINT) = 1 OR i.status IN (:s1, :s2, :s3, :s4))
  AND (CAST(:label_name AS TEXT) IS NULL OR i.intent_id IN (
      SELECT l.intent_id FROM sf.labels l
      WHERE l.tenant = :tenant AND l.name = :label_name AND l.value = :label_value
  ))
ORDER BY i.finished_at, i.intent_id LIMIT :limit

-- name: newest_to_keep
-- The ending of the newest intent that a "keep the latest N" rule lets go.
SELECT i.finished_at, i.intent_id FROM sf.intents i
WHERE i.tenant = :tenant AND i.finished_at IS NOT NULL
  AND (CAST(:any_status AS BIGINT) = 1 OR i.status IN (:s1, :s2, :s3, :s4))
  AND (CAST(:label_name AS TEXT) IS NULL OR i.intent_id IN (
      SELECT l.intent_id FROM sf.labels l
      WHERE l.tenant = :tenant AND l.name = :label_name AND l.value = :label_value
  ))
ORDER BY i.finished_at DESC, i.intent_id DESC LIMIT 1 OFFSET :keep

-- name: delete_intent
DELETE FROM sf.intents WHERE tenant = :tenant AND intent_id = :intent_id

-- name: delete_events
DELETE FROM sf.events WHERE tenant = :tenant AND intent_id = :intent_id

-- name: delete_labels
DELETE FROM sf.labels WHERE tenant = :tenant AND intent_id = :intent_id

-- name: journal_in_use
SELECT 1 FROM sf.intents WHERE tenant = :tenant AND intent_id = :journal_id
UNION ALL
SELECT 1 FROM sf.intents WHERE tenant = :tenant AND journal_id = :journal_id AND revived_from IS NOT NULL
LIMIT 1

-- name: delete_steps
DELETE FROM sf.steps WHERE tenant = :tenant AND journal_id = :journal_id

-- name: delete_decisions
DELETE FROM sf.decisions WHERE tenant = :tenant AND journal_id = :journal_id

-- name: delete_checkpoints
DELETE FROM sf.checkpoints WHERE tenant = :tenant AND journal_id = :journal_id

-- name: delete_pieces
DELETE FROM sf.pieces WHERE tenant = :tenant AND journal_id = :journal_id
