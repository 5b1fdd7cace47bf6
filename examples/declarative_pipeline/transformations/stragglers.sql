-- Which replica slow produces waited for. The last in-sync replica to reach the offset satisfies a produce, so its progress
-- is in the call that ended the wait. (The report also finds replicas that ended one by leaving the in-sync set.)
CREATE MATERIALIZED VIEW stragglers AS
WITH slow AS (
    SELECT * FROM operations
    WHERE kind = 'produce' AND outcome = 'satisfied' AND waited_ms > ${spark.purgatory.slow_ms}
), held AS (
    SELECT s.topic, max(s.waited_ms) AS waited_ms, max_by(e.replica_id, e.row) AS replica_id
    FROM slow s JOIN parquet.`${spark.purgatory.archive}/events` e
        ON e.run_id = s.run_id AND e.call_number = s.end_call AND e.topic = s.topic AND e.partition = s.partition
    WHERE e.type = 'follower_progress' AND e.refusal_code = 0 AND e.offset >= s.required_offset
    GROUP BY s.run_id, s.session_number, s.operation_id, s.topic
)
SELECT topic, replica_id, count(*) AS held_back, percentile_disc(0.5) WITHIN GROUP (ORDER BY waited_ms) AS wait_p50_ms
FROM held
GROUP BY topic, replica_id;
