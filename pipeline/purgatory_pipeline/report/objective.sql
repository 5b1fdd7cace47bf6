SELECT r.kind, coalesce(r.topic, '') AS topic, coalesce(principal, '') AS principal, policy, verdict, timeout_ms,
    unix_millis(at) div 86400000 AS day, recorded, replayed, replayed_waited_ms, count(*) AS operations,
    sum(recorded_waited_ms) AS recorded_sum_ms, sum(replayed_waited_ms) AS replayed_sum_ms
FROM {rows} r JOIN {registrations} USING (run_id, session_number, operation_id)
WHERE item = 0 AND refusal_code = 0 AND timeout_ms > 0 AND verdict IN ('equal', 'different') GROUP BY ALL
