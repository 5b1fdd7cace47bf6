-- A row for each registration (step 1) and end (step -1) of a wait on the engine's clock, and the wall clock's lead over
-- it. Made of: outcomes; unfinished.
WITH waits AS (
    SELECT run_id, topic, partition, kind, time_ms - waited_ms AS begin_ms, time_ms AS end_ms,
        unix_millis(at) - time_ms AS ahead_ms
    FROM {outcomes} WHERE waited_ms > 0
    UNION ALL
    SELECT run_id, topic, partition, kind, time_ms, NULL, unix_millis(at) - time_ms
    FROM {unfinished} WHERE waited_ms IS NOT NULL
)
SELECT run_id, topic, partition, kind, xxhash64(run_id, topic, partition, kind) AS key, ahead_ms, step_ms,
    shiftright(step_ms, {slot_bits}) AS slot, step
FROM waits LATERAL VIEW stack(2, begin_ms, 1, end_ms, -1) AS step_ms, step
WHERE step_ms IS NOT NULL
