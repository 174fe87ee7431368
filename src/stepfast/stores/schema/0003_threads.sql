-- Threads: the state histories of frameworks, stored by the change.
--
-- The rows of a thread (checkpoints, writes, pieces) hang on a *line*, a number of its own, and not on its name.
-- Each row takes the next `seq` of its thread, and its id is the line and the seq in one number: line * 2^27 + seq.
-- So the rows of a thread lie side by side in the order they were written, whoever else writes meanwhile, and a
-- range of ids is a whole line.
--
-- A copy shares its past: copying freezes the line of the source, which both threads see (`thread_views`) from then
-- on, and gives each a new line for what it writes. A line that several threads see is never written
-- again. A thread that changes a row it shares writes its own version under the same seq; of two versions the one
-- on the younger line, which has the higher number, counts. A line goes with the last thread that sees it.
--
-- The tables of rows have no tenant: a line belongs to one tenant (`thread_lines`), and a query finds a line only
-- through a thread of its own tenant.

-- name: threads
-- `head`, `tips`, `floors` are those of the root namespace, so that most commits touch one row here; `meta` is
-- that of its newest checkpoint. `floors`: below it some elements of a lane were deleted. `hour` is updated_at in
-- hours: an index on it serves the order of activity and changes once an hour. `origin` and `origin_seq` say of a
-- copy that nothing was written to, whose copy it is. `no` is the number of the first line. `based`: it sees others.
CREATE TABLE sf.threads (
    no {{rowid}},
    tenant {{text}} NOT NULL,
    thread_id {{text}} NOT NULL,
    home {{text}} NOT NULL,
    line BIGINT NOT NULL,
    based BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    checkpoints BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    hour BIGINT NOT NULL,
    expires_at BIGINT,
    head {{text}},
    tips {{text}} NOT NULL,
    floors {{text}} NOT NULL,
    meta {{text}} NOT NULL,
    origin {{text}},
    origin_seq BIGINT
)

-- name: threads_by_id
CREATE UNIQUE INDEX threads_by_id ON sf.threads (tenant, thread_id)

-- name: threads_by_hour
CREATE INDEX threads_by_hour ON sf.threads (tenant, hour)

-- name: threads_expiring
CREATE INDEX threads_expiring ON sf.threads (tenant, expires_at) WHERE expires_at IS NOT NULL

-- name: thread_lines
CREATE TABLE sf.thread_lines (
    line {{serial}},
    tenant {{text}} NOT NULL
)

-- name: thread_views
-- Which lines a thread sees: its own, and those it shares.
CREATE TABLE sf.thread_views (
    thread BIGINT NOT NULL,
    line BIGINT NOT NULL,
    PRIMARY KEY (thread, line)
) {{clustered}}

-- name: thread_views_by_line
CREATE INDEX thread_views_by_line ON sf.thread_views (line)

-- name: thread_heads
-- The namespaces besides the root.
CREATE TABLE sf.thread_heads (
    thread BIGINT NOT NULL,
    ns {{text}} NOT NULL,
    head {{text}},
    tips {{text}} NOT NULL,
    floors {{text}} NOT NULL,
    PRIMARY KEY (thread, ns)
) {{clustered}}

-- name: thread_checkpoints
CREATE TABLE sf.thread_checkpoints (
    id {{rowid}},
    line BIGINT NOT NULL,
    ns {{text}} NOT NULL,
    checkpoint_id {{text}} NOT NULL,
    parent_id {{text}},
    run_id {{text}},
    meta {{text}} NOT NULL,
    spans {{text}} NOT NULL,
    head BYTEA NOT NULL,
    at BIGINT NOT NULL
)

-- name: thread_checkpoints_by_id
CREATE UNIQUE INDEX thread_checkpoints_by_id ON sf.thread_checkpoints (line, ns, checkpoint_id)

-- name: thread_checkpoints_by_run
CREATE INDEX thread_checkpoints_by_run ON sf.thread_checkpoints (run_id) WHERE run_id IS NOT NULL

-- name: thread_writes
-- The regular writes of a task are one row, of slot 0; each special one is a row of the slot of its idx.
CREATE TABLE sf.thread_writes (
    id {{rowid}},
    line BIGINT NOT NULL,
    ns {{text}} NOT NULL,
    checkpoint_id {{text}} NOT NULL,
    task_id {{text}} NOT NULL,
    slot BIGINT NOT NULL,
    task_path {{text}} NOT NULL,
    body BYTEA NOT NULL
)

-- name: thread_writes_by_checkpoint
CREATE INDEX thread_writes_by_checkpoint ON sf.thread_writes (line, ns, checkpoint_id)

-- name: thread_pieces
CREATE TABLE sf.thread_pieces (
    id {{rowid}},
    line BIGINT NOT NULL,
    ns {{text}} NOT NULL,
    lane {{text}} NOT NULL,
    n BIGINT NOT NULL,
    count BIGINT NOT NULL,
    data BYTEA NOT NULL
)

-- name: thread_pieces_by_number
CREATE UNIQUE INDEX thread_pieces_by_number ON sf.thread_pieces (line, ns, lane, n)
