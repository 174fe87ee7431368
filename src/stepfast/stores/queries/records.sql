-- define: record_columns
r.kind, r.record_id, r.version, r.body, r.belongs_to, r.due_at, r.created_at, r.updated_at, r.write_id

-- name: time_now
SELECT {{now}}

-- name: lock_record
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.kind = :kind AND r.record_id = :record_id {{for_update}}

-- name: record
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.kind = :kind AND r.record_id = :record_id

-- name: insert_record
-- Refused where it was written since the plan looked: it looks again.
INSERT INTO sf.records (
    tenant, kind, record_id, version, body, belongs_to, due_at, created_at, updated_at, write_id
) VALUES (
    :tenant, :kind, :record_id, :version, :body, :belongs_to, :due_at, :created_at, :updated_at, :write_id
)

-- name: update_record
UPDATE sf.records SET version = :version, body = :body, belongs_to = :belongs_to, due_at = :due_at,
    updated_at = :updated_at, write_id = :write_id
WHERE tenant = :tenant AND kind = :kind AND record_id = :record_id

-- name: list_records
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.kind = :kind AND r.record_id > :after
ORDER BY r.record_id LIMIT :limit

-- name: list_records_under
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.kind = :kind AND r.record_id > :after AND r.record_id >= :low AND r.record_id < :high
ORDER BY r.record_id LIMIT :limit

-- name: list_records_of
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.belongs_to = :belongs_to AND r.belongs_to <> '' AND r.kind = :kind
  AND r.record_id > :after AND SUBSTR(r.record_id, 1, :length) = :prefix
ORDER BY r.record_id LIMIT :limit

-- name: recent_records
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.kind = :kind
  AND (r.updated_at < :at OR (r.updated_at = :at AND r.record_id > :after))
ORDER BY r.updated_at DESC, r.record_id LIMIT :limit

-- name: recent_records_under
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.kind = :kind AND r.record_id >= :low AND r.record_id < :high
  AND (r.updated_at < :at OR (r.updated_at = :at AND r.record_id > :after))
ORDER BY r.updated_at DESC, r.record_id LIMIT :limit

-- name: due_records
SELECT {{record_columns}} FROM sf.records r
WHERE r.tenant = :tenant AND r.due_at IS NOT NULL AND r.due_at <= {{moment}}
ORDER BY r.due_at LIMIT :limit

-- name: delete_record
DELETE FROM sf.records WHERE tenant = :tenant AND kind = :kind AND record_id = :record_id

-- name: delete_records_under
DELETE FROM sf.records WHERE tenant = :tenant AND kind = :kind AND record_id IN (
    SELECT r.record_id FROM sf.records r
    WHERE r.tenant = :tenant AND r.kind = :kind AND r.record_id >= :low AND r.record_id < :high
    ORDER BY r.record_id LIMIT :limit
)

-- name: delete_records_of
DELETE FROM sf.records WHERE tenant = :tenant AND belongs_to = :intent_id AND belongs_to <> ''

-- name: held_by_owner
-- Few intents are in progress at a time, so no index is kept for the rare question who holds them.
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.status = 'IN_PROGRESS' AND i.finished_at IS NULL AND i.leased = 1
  AND i.owner = :owner
ORDER BY i.intent_id LIMIT :limit {{for_update_skip_locked}}

-- name: addresses_with_work
-- Leaps from address to address along the index, so that a long queue for one costs one look.
WITH RECURSIVE found (address, many) AS (
    SELECT (
        SELECT MIN(i.to_agent) FROM sf.intents i
        WHERE i.tenant = :tenant AND i.claimable_at IS NOT NULL AND i.to_agent > :after
    ), 1
    UNION ALL
    SELECT (
        SELECT MIN(i.to_agent) FROM sf.intents i
        WHERE i.tenant = :tenant AND i.claimable_at IS NOT NULL AND i.to_agent > found.address
    ), found.many + 1
    FROM found WHERE found.address IS NOT NULL AND found.many < 10000
)
SELECT found.address FROM found
WHERE found.address IS NOT NULL AND EXISTS (
    SELECT 1 FROM sf.intents i
    WHERE i.tenant = :tenant AND i.to_agent = found.address AND i.claimable_at IS NOT NULL
      AND i.claimable_at <= {{moment}}
) LIMIT :limit

-- name: next_due
SELECT MIN(due) FROM (
    SELECT MIN(i.deadline_at) AS due FROM sf.intents i
    WHERE i.tenant = :tenant AND i.deadline_at IS NOT NULL AND i.finished_at IS NULL
    UNION ALL
    SELECT MIN(d.expires_at) FROM sf.decisions d
    WHERE d.tenant = :tenant AND d.outcome IS NULL AND d.expires_at IS NOT NULL
    UNION ALL
    SELECT MIN(r.due_at) FROM sf.records r WHERE r.tenant = :tenant AND r.due_at IS NOT NULL
    UNION ALL
    SELECT MIN(t.expires_at) FROM sf.threads t WHERE t.tenant = :tenant AND t.expires_at IS NOT NULL
) AS timed

-- name: open_by_status
SELECT i.status, COUNT(*) FROM sf.intents i WHERE i.tenant = :tenant AND i.finished_at IS NULL GROUP BY i.status

-- name: count_claimable
SELECT COUNT(*) FROM sf.intents i
WHERE i.tenant = :tenant AND i.claimable_at IS NOT NULL AND i.claimable_at <= {{moment}}

-- name: store_size
-- only: sqlite
SELECT p.page_count * s.page_size FROM pragma_page_count() p, pragma_page_size() s

-- name: store_size
-- only: postgres
SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_catalog.pg_class c
WHERE c.relkind = 'r' AND c.relnamespace = (
    SELECT own.relnamespace FROM pg_catalog.pg_class own WHERE own.oid = 'sf.intents'::regclass
)
