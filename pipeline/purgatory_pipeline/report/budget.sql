-- The table `budget`. As for `advise`, a failed or cancelled operation has not expired, immediate answers (timeout 0) do
-- not count, and all signals are one topic. An immediate answer ends in the window in which it was registered.
-- Made of: facts; registered (registered_counts.sql); window_ms; objective (the share that may not expire).
WITH counted AS (
    SELECT window, kind, topic, principal, operations, if(fate = 'expired' AND waited_ms > lateness_ms, operations, 0)
        AS expired
    FROM {facts} WHERE fate IN ('satisfied', 'failed', 'expired', 'cancelled', 'shutting_down')
    UNION ALL
    SELECT window, kind, topic, principal, -operations, 0 FROM {registered} WHERE timeout_ms = 0 AND NOT refused
), placed AS (
    SELECT kind, if(kind = 'signal', '', topic) AS topic, principal, operations, expired,
        timestamp_millis(window * {window_ms} div 86400000 * 86400000) AS day
    FROM counted
)
SELECT kind, topic, principal, day, sum(operations) AS operations, sum(expired) AS expired,
    sum(expired) / sum(operations) / (1 - {objective}) AS burnt
FROM placed GROUP BY GROUPING SETS ((kind, topic, principal), (kind, topic, principal, day))
HAVING sum(operations) > 0
