-- Threads, many at a time: pages, paths, and what deletes or moves whole lines.

-- define: listed
(CAST(:ns AS TEXT) IS NULL OR c.ns = :ns)
AND (CAST(:checkpoint_id AS TEXT) IS NULL OR c.checkpoint_id = :checkpoint_id)
AND (CAST(:below AS TEXT) IS NULL OR c.checkpoint_id < :below)

-- name: page_of_line
-- A thread that shares nothing: its line from the end.
SELECT {{checkpoint_columns}} FROM sf.thread_checkpoints c
WHERE c.id >= :low AND c.id < :high AND {{listed}}
ORDER BY c.id DESC LIMIT :limit

-- name: page_of_lines
SELECT {{checkpoint_columns}} FROM sf.thread_views v JOIN sf.thread_checkpoints c ON c.line = v.line
WHERE v.thread = :thread AND (c.id & 134217727) < :upto AND {{listed}} AND NOT EXISTS (
    SELECT 1 FROM sf.thread_views u JOIN sf.thread_checkpoints d ON d.line = u.line
    WHERE u.thread = :thread AND d.ns = c.ns AND d.checkpoint_id = c.checkpoint_id AND d.line > c.line
)
ORDER BY (c.id & 134217727) DESC LIMIT :limit

-- name: place_of_checkpoint
SELECT MIN(c.id & 134217727) FROM sf.thread_views v JOIN sf.thread_checkpoints c ON c.line = v.line
WHERE v.thread = :thread AND c.checkpoint_id = :checkpoint_id AND (CAST(:ns AS TEXT) IS NULL OR c.ns = :ns)

-- name: writes_of_keys
-- only: sqlite
SELECT {{write_columns}} FROM json_each(:keys) e CROSS JOIN {{lines_of_this}} JOIN sf.thread_writes w
ON w.line = v.line AND w.ns = json_extract(e.value, '$[0]') AND w.checkpoint_id = json_extract(e.value, '$[1]')
WHERE {{this_thread}} ORDER BY w.line, w.id

-- name: writes_of_keys
-- only: postgres
SELECT {{write_columns}} FROM jsonb_array_elements(:keys::text::jsonb) e CROSS JOIN {{lines_of_this}}
JOIN sf.thread_writes w ON w.line = v.line AND w.ns = e.value->>0 AND w.checkpoint_id = e.value->>1
WHERE {{this_thread}} ORDER BY w.line, w.id

-- define: parent_of
SELECT c.parent_id FROM {{lines_of_this}} JOIN sf.thread_checkpoints c
ON c.line = v.line AND c.ns = :ns AND c.checkpoint_id

-- define: path
-- From parent to parent, each by the version that the thread sees.
WITH RECURSIVE path (checkpoint_id, depth) AS (
    SELECT ({{parent_of}} = :checkpoint_id WHERE {{this_thread}} AND {{alive}} ORDER BY c.line DESC LIMIT 1), 1
    UNION ALL
    SELECT ({{parent_of}} = path.checkpoint_id WHERE {{this_thread}} ORDER BY c.line DESC LIMIT 1), path.depth + 1
    FROM path WHERE path.checkpoint_id IS NOT NULL AND path.depth < :limit
)

-- name: path_of_checkpoint
{{path}}
SELECT {{checkpoint_columns}}, path.depth FROM path CROSS JOIN {{lines_of_this}} JOIN sf.thread_checkpoints c
ON c.line = v.line AND c.ns = :ns AND c.checkpoint_id = path.checkpoint_id
WHERE {{this_thread}} ORDER BY path.depth, c.line DESC

-- name: writes_of_path
{{path}}
SELECT {{write_columns}} FROM path CROSS JOIN {{lines_of_this}} JOIN sf.thread_writes w
ON w.line = v.line AND w.ns = :ns AND w.checkpoint_id = path.checkpoint_id
WHERE {{this_thread}} ORDER BY w.line, w.id

-- name: checkpoints_of_run
SELECT t.thread_id, c.ns, c.checkpoint_id, c.run_id FROM sf.thread_checkpoints c
JOIN sf.thread_views v ON v.line = c.line
JOIN sf.threads t ON t.no = v.thread
WHERE c.run_id = :run_id AND t.tenant = :tenant AND {{alive}} AND NOT EXISTS (
    SELECT 1 FROM sf.thread_views u JOIN sf.thread_checkpoints d ON d.line = u.line
    WHERE u.thread = t.no AND d.ns = c.ns AND d.checkpoint_id = c.checkpoint_id AND d.line > c.line
)
ORDER BY t.thread_id, c.id

-- name: next_threads
SELECT {{thread_columns}} FROM sf.threads t
WHERE t.tenant = :tenant AND t.thread_id >= :from_id AND {{alive}}
ORDER BY t.thread_id LIMIT :limit

-- name: list_threads
-- By the hour first, which has an index and never contradicts the rest of the order.
SELECT {{thread_columns}} FROM sf.threads t
WHERE t.tenant = :tenant AND {{alive}} AND t.hour <= :hour
  AND (t.updated_at < :upto OR (t.updated_at = :upto AND t.no < :no))
  AND t.updated_at > :updated_after AND SUBSTR(t.thread_id, 1, :length) = :prefix
ORDER BY t.hour DESC, t.updated_at DESC, t.no DESC LIMIT :limit

-- name: count_threads
SELECT COUNT(*) FROM sf.threads t
WHERE t.tenant = :tenant AND {{alive}} AND SUBSTR(t.thread_id, 1, :length) = :prefix

-- name: set_thread_expiry
UPDATE sf.threads SET expires_at = :expires_at WHERE no = :no

-- name: expired_threads
SELECT {{thread_columns}} FROM sf.threads t
WHERE t.tenant = :tenant AND t.expires_at IS NOT NULL AND t.expires_at <= {{moment}}
ORDER BY t.expires_at LIMIT :limit {{for_update_skip_locked}}

-- name: lines_of_thread
SELECT v.line FROM sf.thread_views v WHERE v.thread = :thread ORDER BY v.line

-- name: lock_line
SELECT l.line FROM sf.thread_lines l WHERE l.line = :line {{for_update}}

-- name: line_is_seen
SELECT 1 FROM sf.thread_views v WHERE v.line = :line LIMIT 1

-- name: line_holds
SELECT 1 FROM sf.thread_checkpoints c WHERE c.id >= :low AND c.id < :high
UNION ALL
SELECT 1 FROM sf.thread_writes w WHERE w.id >= :low AND w.id < :high
UNION ALL
SELECT 1 FROM sf.thread_pieces p WHERE p.id >= :low AND p.id < :high
LIMIT 1

-- name: insert_view
INSERT INTO sf.thread_views (thread, line) VALUES (:thread, :line)

-- name: copy_views
INSERT INTO sf.thread_views (thread, line)
SELECT CAST(:thread AS BIGINT), v.line FROM sf.thread_views v WHERE v.thread = :source AND v.line <> :own

-- name: copy_heads
INSERT INTO sf.thread_heads (thread, ns, head, tips, floors)
SELECT CAST(:thread AS BIGINT), h.ns, h.head, h.tips, h.floors FROM sf.thread_heads h WHERE h.thread = :source

-- name: set_line
UPDATE sf.threads SET line = :line, based = :based WHERE no = :no

-- name: delete_thread
DELETE FROM sf.threads WHERE no = :thread

-- name: delete_thread_heads
DELETE FROM sf.thread_heads WHERE thread = :thread

-- name: delete_thread_views
DELETE FROM sf.thread_views WHERE thread = :thread

-- name: delete_line
DELETE FROM sf.thread_lines WHERE line = :line

-- name: delete_line_checkpoints
DELETE FROM sf.thread_checkpoints WHERE id >= :low AND id < :high

-- name: delete_line_writes
DELETE FROM sf.thread_writes WHERE id >= :low AND id < :high

-- name: delete_line_pieces
DELETE FROM sf.thread_pieces WHERE id >= :low AND id < :high

-- name: flatten_checkpoints
INSERT INTO sf.thread_checkpoints (id, line, ns, checkpoint_id, parent_id, run_id, meta, spans, head, at)
SELECT :base + (c.id & 134217727), CAST(:line AS BIGINT), c.ns, c.checkpoint_id, c.parent_id, c.run_id, c.meta,
    c.spans, c.head, c.at
FROM sf.thread_views v JOIN sf.thread_checkpoints c ON c.line = v.line
WHERE v.thread = :thread AND NOT EXISTS (
    SELECT 1 FROM sf.thread_views u JOIN sf.thread_checkpoints d ON d.line = u.line
    WHERE u.thread = :thread AND d.ns = c.ns AND d.checkpoint_id = c.checkpoint_id AND d.line > c.line
)

-- name: flatten_writes
INSERT INTO sf.thread_writes (id, line, ns, checkpoint_id, task_id, slot, task_path, body)
SELECT :base + (w.id & 134217727), CAST(:line AS BIGINT), w.ns, w.checkpoint_id, w.task_id, w.slot, w.task_path,
    w.body
FROM sf.thread_views v JOIN sf.thread_writes w ON w.line = v.line
WHERE v.thread = :thread AND NOT EXISTS (
    SELECT 1 FROM sf.thread_views u JOIN sf.thread_writes o ON o.line = u.line
    WHERE u.thread = :thread AND o.ns = w.ns AND o.checkpoint_id = w.checkpoint_id AND o.task_id = w.task_id
      AND o.slot = w.slot AND o.line > w.line
)

-- name: flatten_pieces
INSERT INTO sf.thread_pieces (id, line, ns, lane, n, count, data)
SELECT :base + (p.id & 134217727), CAST(:line AS BIGINT), p.ns, p.lane, p.n, p.count, p.data
FROM sf.thread_views v JOIN sf.thread_pieces p ON p.line = v.line WHERE v.thread = :thread

-- name: drop_checkpoint
DELETE FROM sf.thread_checkpoints WHERE line = :line AND ns = :ns AND checkpoint_id = :checkpoint_id

-- name: drop_writes
DELETE FROM sf.thread_writes WHERE line = :line AND ns = :ns AND checkpoint_id = :checkpoint_id

-- name: newest_checkpoint
SELECT c.checkpoint_id, c.meta FROM sf.thread_checkpoints c
WHERE c.line = :line AND c.ns = :ns ORDER BY c.id DESC LIMIT 1

-- name: spans_of_namespace
SELECT c.spans FROM sf.thread_checkpoints c WHERE c.line = :line AND c.ns = :ns

-- name: pieces_of_namespace
SELECT p.id, p.lane, p.n, p.count FROM sf.thread_pieces p WHERE p.line = :line AND p.ns = :ns ORDER BY p.lane, p.n

-- name: drop_piece
DELETE FROM sf.thread_pieces WHERE id = :id

-- name: measure_line
SELECT
    (SELECT COUNT(*) FROM sf.thread_checkpoints c WHERE c.id >= :low AND c.id < :high),
    (SELECT COALESCE(SUM(LENGTH(c.head)), 0) FROM sf.thread_checkpoints c WHERE c.id >= :low AND c.id < :high),
    (SELECT COALESCE(SUM(LENGTH(w.body)), 0) FROM sf.thread_writes w WHERE w.id >= :low AND w.id < :high),
    (SELECT COALESCE(SUM(LENGTH(p.data)), 0) FROM sf.thread_pieces p WHERE p.id >= :low AND p.id < :high)
