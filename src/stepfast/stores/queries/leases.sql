-- name: next_claimable
-- The intents of an address that are due, oldest first; with many workers each sees other rows.
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.to_agent = :to_agent AND i.claimable_at <= {{moment}}
ORDER BY i.claimable_at LIMIT :limit {{for_update_skip_locked}}

-- name: held_by_token
-- What an earlier, unanswered claim with the same token took. Its leases end in the future, as those of what
-- is waiting to be claimed do not: so however long the queue is, few rows are looked at. That it locks them
-- also keeps PostgreSQL from starting parallel workers, which cost more than the look itself.
SELECT {{intent_columns}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.to_agent = :to_agent AND i.claimable_at > {{moment}} AND i.lease_token = :token
ORDER BY i.claimable_at, i.intent_id {{for_update}}

-- name: renew_lease
UPDATE sf.intents SET claimable_at = {{now}} + :lease_us
WHERE tenant = :tenant AND intent_id = :intent_id AND attempt = :attempt AND lease_token = :token
  AND leased = 1 AND status = 'IN_PROGRESS'
RETURNING claimable_at

-- name: past_deadline
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.deadline_at <= {{moment}} AND i.deadline_at IS NOT NULL AND i.finished_at IS NULL
ORDER BY i.deadline_at LIMIT :limit {{for_update_skip_locked}}

-- name: exhausted_leases
-- Leases that ran out on the last delivery an intent had. An attempt that finished a step is not the last one.
SELECT {{intent_columns}}, {{now}} FROM sf.intents i
WHERE i.tenant = :tenant AND i.claimable_at <= {{moment}} AND i.claimable_at IS NOT NULL
  AND i.leased = 1 AND i.lost + 1 >= i.max_delivery_attempts AND NOT EXISTS (
      SELECT 1 FROM sf.steps s
      WHERE s.tenant = :tenant AND s.journal_id = i.journal_id AND s.attempt = i.attempt AND s.voided = 0
        AND s.status <> 'STARTED'
  )
ORDER BY i.claimable_at LIMIT :limit {{for_update_skip_locked}}

-- name: touch_health
INSERT INTO sf.health (tenant, checked_at) VALUES (:tenant, {{now}})
ON CONFLICT (tenant) DO UPDATE SET checked_at = excluded.checked_at
RETURNING checked_at
