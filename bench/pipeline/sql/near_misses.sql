-- Expired waits for marks and signals: when their mark was reached after all. Made of: outcomes, events.

CREATE OR REPLACE TEMP TABLE missed AS
WITH waits AS (
    SELECT run_id, session_number, operation_id, item, item_count, topic, partition, kind, call_number, time_ms,
        waited_ms, waited_ms - lateness_ms AS timeout_ms, required_offset, reached_offset, error_code = 0 AS is_resolved
    FROM outcomes WHERE outcome = 'expired' AND kind IN ('produce', 'delete_records', 'signal')
), signals AS (
    SELECT run_id, topic, partition, call_number, time_ms,
        sum(if(flags = 0, "offset", 0)) OVER (PARTITION BY run_id, topic, partition ORDER BY call_number) AS number
    FROM events WHERE refusal_code = 0 AND type = 'key_signalled'
), breaks AS (
    SELECT run_id, topic, partition, if(type = 'key_signalled', 'signal', 'produce') AS kind, call_number
    FROM events WHERE refusal_code = 0 AND (type IN ('leadership', 'truncation', 'partition_removed')
        OR (type = 'key_signalled' AND flags <> 0))
), marks AS (
    SELECT run_id, topic, partition, kind, call_number, time_ms, reached_offset AS mark,
        required_offset AS above
    FROM outcomes WHERE outcome = 'satisfied' AND kind IN ('produce', 'delete_records') AND waited_ms > 0
    UNION ALL SELECT run_id, topic, partition, 'produce', call_number, time_ms, "offset", 0 FROM events
    WHERE refusal_code = 0 AND type = 'high_watermark'
    UNION ALL SELECT run_id, topic, partition, 'signal', call_number, time_ms, number, 0 FROM signals
), wanted AS (
    SELECT w.*, CASE WHEN kind = 'signal' THEN required_offset - reached_offset + coalesce((
        SELECT max(number) FROM signals s WHERE s.run_id = w.run_id AND s.topic = w.topic
            AND s.partition = w.partition AND s.call_number <= w.call_number), 0) ELSE required_offset END AS mark
    FROM waits w
), found AS (
    SELECT w.run_id, w.session_number, w.operation_id, w.item, w.topic, w.kind, w.call_number, w.time_ms, w.waited_ms,
        w.timeout_ms, w.is_resolved, w.kind <> 'signal' OR w.item_count = 1 AS can_be_known,
        w.mark, min({'call_number': m.call_number, 'time_ms': m.time_ms, 'above': m.above}) AS first,
        (SELECT min(b.call_number) FROM breaks b WHERE b.run_id = w.run_id AND b.topic = w.topic
            AND b.partition = w.partition AND b.kind = w.kind AND b.call_number >= w.call_number) AS break_call
    FROM wanted w LEFT JOIN marks m ON m.run_id = w.run_id AND m.topic = w.topic AND m.partition = w.partition
        AND m.kind = w.kind AND m.mark >= w.mark
    GROUP BY ALL
), operations AS (
    SELECT run_id, session_number, operation_id, arg_min({'topic': topic, 'kind': kind, 'call_number': call_number,
            'waited_ms': waited_ms, 'timeout_ms': timeout_ms}, item) AS own, min(time_ms - waited_ms) AS began_ms,
        bool_and(is_resolved OR coalesce(can_be_known AND first.call_number > call_number AND mark >= first.above
            AND (break_call IS NULL OR break_call > first.call_number), FALSE)) AS is_reached,
        max(first) FILTER (NOT is_resolved) AS last
    FROM found GROUP BY ALL
)
SELECT own.topic AS topic, own.kind AS kind, run_id, own.timeout_ms AS timeout_ms,
    if(is_reached AND last IS NOT NULL, 'reached', 'expired') AS fate,
    if(fate = 'reached', last.call_number, own.call_number) AS call_number,
    if(fate = 'reached', greatest(last.time_ms - began_ms, own.timeout_ms + 1), own.waited_ms) AS waited_ms
FROM operations;
