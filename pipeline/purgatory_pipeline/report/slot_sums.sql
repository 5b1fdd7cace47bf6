-- Sums by run and slot that are 0 if registrations and outcomes have the same rows. A row that occurs twice on one side
-- cancels out in the digest, but not in the number of rows. Made of: begun, ended.
WITH both AS (
    SELECT run_id, slot, session_number, operation_id, item, time_ms, 1 AS side FROM {begun}
    UNION ALL
    SELECT run_id, slot, session_number, operation_id, item, time_ms, -1 FROM {ended}
)
SELECT run_id, slot, sum(side) AS rows, bit_xor(xxhash64(session_number, operation_id, item)) AS digest,
    min(time_ms) AS first_ms, max(time_ms) AS last_ms
FROM both GROUP BY run_id, slot
