-- Threads. A query that finds rows starts from the thread's name, so that none of a plan's first questions needs
-- the answer to another. 134217727 is 2^27 - 1: the part of an id that is the seq.

-- define: thread_columns
t.no, t.thread_id, t.home, t.line, t.based, t.seq, t.checkpoints, t.size_bytes, t.created_at, t.updated_at,
t.expires_at, t.head, t.tips, t.floors, t.meta, t.origin, t.origin_seq, {{now}}

-- define: this_thread
t.tenant = :tenant AND t.thread_id = :thread_id

-- define: alive
(t.expires_at IS NULL OR t.expires_at > {{now}})

-- define: lines_of_this
sf.threads t JOIN sf.thread_views v ON v.thread = t.no

-- define: checkpoint_columns
c.id, c.ns, c.checkpoint_id, c.parent_id, c.run_id, c.meta, c.spans, c.head, c.at

-- define: write_columns
w.id, w.ns, w.checkpoint_id, w.task_id, w.slot, w.task_path, w.body

-- name: thread
SELECT {{thread_columns}} FROM sf.threads t WHERE {{this_thread}}

-- name: lock_thread
SELECT {{thread_columns}} FROM sf.threads t WHERE {{this_thread}} {{for_update}}

-- name: thread_head
SELECT h.head, h.tips, h.floors FROM sf.threads t JOIN sf.thread_heads h ON h.thread = t.no AND h.ns = :ns
WHERE {{this_thread}}

-- name: own_checkpoint
-- On the thread's own line only; what it shares is looked for where it shares anything.
SELECT {{checkpoint_columns}} FROM sf.threads t
JOIN sf.thread_checkpoints c ON c.line = t.line AND c.ns = :ns AND c.checkpoint_id = :checkpoint_id
WHERE {{this_thread}}

-- name: own_writes
SELECT {{write_columns}} FROM sf.threads t
JOIN sf.thread_writes w ON w.line = t.line AND w.ns = :ns AND w.checkpoint_id = :checkpoint_id
WHERE {{this_thread}}

-- name: shared_checkpoint
SELECT {{checkpoint_columns}} FROM sf.thread_views v
JOIN sf.thread_checkpoints c ON c.line = v.line AND c.ns = :ns AND c.checkpoint_id = :checkpoint_id
WHERE v.thread = :thread ORDER BY c.line DESC LIMIT 1

-- name: shared_writes
SELECT {{write_columns}} FROM sf.thread_views v
JOIN sf.thread_writes w ON w.line = v.line AND w.ns = :ns AND w.checkpoint_id = :checkpoint_id
WHERE v.thread = :thread ORDER BY w.line

-- name: piece_at
SELECT p.count, p.data FROM {{lines_of_this}} JOIN sf.thread_pieces p
ON p.line = v.line AND p.ns = :ns AND p.lane = :lane AND p.n = :n
WHERE {{this_thread}}

-- name: places_of_pieces
SELECT p.n, p.count FROM {{lines_of_this}} JOIN sf.thread_pieces p
ON p.line = v.line AND p.ns = :ns AND p.lane = :lane AND p.n + p.count > :low AND p.n < :high
WHERE {{this_thread}} ORDER BY p.n

-- name: insert_line
INSERT INTO sf.thread_lines (tenant) VALUES (:tenant) RETURNING line

-- name: insert_thread
-- Refused where it was made since the plan looked: it looks again.
INSERT INTO sf.threads (
    no, tenant, thread_id, home, line, based, seq, checkpoints, size_bytes, created_at, updated_at, hour, expires_at,
    head, tips, floors, meta, origin, origin_seq
) VALUES (
    :no, :tenant, :thread_id, :home, :line, :based, :seq, :checkpoints, :size_bytes, :created_at, :updated_at, :hour,
    :expires_at, :head, :tips, :floors, :meta, :origin, :origin_seq
)

-- name: update_thread
UPDATE sf.threads SET seq = :seq, checkpoints = :checkpoints, size_bytes = :size_bytes, updated_at = :updated_at,
    hour = :hour, expires_at = :expires_at, head = :head, tips = :tips, floors = :floors, meta = :meta
WHERE no = :no

-- name: put_thread_head
INSERT INTO sf.thread_heads (thread, ns, head, tips, floors) VALUES (:thread, :ns, :head, :tips, :floors)
ON CONFLICT (thread, ns) DO UPDATE SET head = excluded.head, tips = excluded.tips, floors = excluded.floors

-- name: insert_thread_checkpoint
INSERT INTO sf.thread_checkpoints (id, line, ns, checkpoint_id, parent_id, run_id, meta, spans, head, at)
VALUES (:id, :line, :ns, :checkpoint_id, :parent_id, :run_id, :meta, :spans, :head, :at)

-- name: update_thread_checkpoint
UPDATE sf.thread_checkpoints SET parent_id = :parent_id, run_id = :run_id, meta = :meta, spans = :spans, head = :head
WHERE id = :id

-- name: insert_thread_writes
INSERT INTO sf.thread_writes (id, line, ns, checkpoint_id, task_id, slot, task_path, body)
VALUES (:id, :line, :ns, :checkpoint_id, :task_id, :slot, :task_path, :body)

-- name: update_thread_writes
UPDATE sf.thread_writes SET task_path = :task_path, body = :body WHERE id = :id

-- name: insert_thread_piece
INSERT INTO sf.thread_pieces (id, line, ns, lane, n, count, data)
VALUES (:id, :line, :ns, :lane, :n, :count, :data)

-- name: view_thread
SELECT t.home, CASE WHEN :ns = '' THEN t.tips ELSE (
    SELECT h.tips FROM sf.thread_heads h WHERE h.thread = t.no AND h.ns = :ns
) END, t.created_at FROM sf.threads t WHERE {{this_thread}} AND {{alive}}

-- define: viewed
COALESCE(:checkpoint_id, CASE WHEN :ns = '' THEN t.head ELSE (
    SELECT h.head FROM sf.thread_heads h WHERE h.thread = t.no AND h.ns = :ns
) END)

-- name: view_checkpoint
SELECT {{checkpoint_columns}} FROM {{lines_of_this}} JOIN sf.thread_checkpoints c
ON c.line = v.line AND c.ns = :ns AND c.checkpoint_id = {{viewed}}
WHERE {{this_thread}} ORDER BY c.line DESC LIMIT 1

-- name: view_writes
SELECT {{write_columns}} FROM {{lines_of_this}} JOIN sf.thread_writes w
ON w.line = v.line AND w.ns = :ns AND w.checkpoint_id = {{viewed}}
WHERE {{this_thread}} ORDER BY w.line, w.id

-- define: spans_viewed
SELECT c.spans FROM {{lines_of_this}} JOIN sf.thread_checkpoints c
ON c.line = v.line AND c.ns = :ns AND c.checkpoint_id = {{viewed}}
WHERE {{this_thread}} ORDER BY c.line DESC LIMIT 1

-- define: pieces_of_x
-- A piece may begin before the first element that is wanted: the search begins with the last that does.
y (line, lane, low, high, first) AS MATERIALIZED (
    SELECT v.line, x.lane, x.low, x.high, COALESCE((
        SELECT MAX(q.n) FROM sf.thread_pieces q
        WHERE q.line = v.line AND q.ns = :ns AND q.lane = x.lane AND q.n <= x.low
    ), x.low)
    FROM x CROSS JOIN {{lines_of_this}} WHERE {{this_thread}} AND {{alive}}
)
SELECT p.lane, p.n, p.count, p.data FROM y JOIN sf.thread_pieces p
ON p.line = y.line AND p.ns = :ns AND p.lane = y.lane AND p.n >= y.first AND p.n < y.high AND p.n + p.count > y.low

-- name: view_pieces
-- only: sqlite
WITH spans (text) AS ({{spans_viewed}}), x (lane, low, high) AS (
    SELECT json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]')
    FROM spans CROSS JOIN json_each(CASE WHEN json_valid(spans.text) THEN spans.text ELSE '[]' END) e
), {{pieces_of_x}}

-- name: view_pieces
-- only: postgres
WITH spans (text) AS ({{spans_viewed}}), x (lane, low, high) AS (
    SELECT e.value->>0, (e.value->>1)::bigint, (e.value->>2)::bigint
    FROM spans CROSS JOIN jsonb_array_elements(spans.text::jsonb) e
), {{pieces_of_x}}

-- name: pieces_of_spans
-- only: sqlite
WITH x (lane, low, high) AS (
    SELECT json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]')
    FROM json_each(:spans) e
), {{pieces_of_x}}

-- name: pieces_of_spans
-- only: postgres
WITH x (lane, low, high) AS (
    SELECT e.value->>0, (e.value->>1)::bigint, (e.value->>2)::bigint FROM jsonb_array_elements(:spans::text::jsonb) e
), {{pieces_of_x}}
