-- The table `backlog`. Made of: steps; deep (the slots that may contain the deepest moment).
WITH moments AS (
    -- A sorted window's default frame includes all steps of the same millisecond.
    SELECT run_id, topic, partition, kind, -(step_ms + ahead_ms) AS earlier,
        before + sum(step) OVER (PARTITION BY key, slot ORDER BY step_ms) AS pending
    FROM {steps} JOIN {deep} USING (key, slot)
), found AS (
    SELECT topic, partition, kind, max(struct(pending, earlier, run_id)) AS best FROM moments
    GROUP BY topic, partition, kind
)
SELECT topic, partition, kind, best.pending AS deepest, timestamp_millis(-best.earlier) AS at, best.run_id
FROM found WHERE best.pending > 0
