-- A row for each expired operation of some kinds (near_misses.py). Made of: outcomes; events.
-- A step is a wait, a mark that was seen, or a break after which marks begin again. Before its call, a mark was below
-- `above`: it may have passed lower offsets earlier. A key is at the number of its signals; a wait for a key is for that
-- number and the signals that it lacks. `first` is the first step that shows the mark of a wait.
WITH waits AS (
    SELECT *, waited_ms - lateness_ms AS timeout_ms FROM {outcomes}
    WHERE outcome = 'expired' AND kind IN ('produce', 'delete_records', 'signal')
), applied AS (
    SELECT *, if(type = 'key_signalled', 'signal', 'produce') AS kind,
        type NOT IN ('high_watermark', 'key_signalled') OR (type = 'key_signalled' AND flags <> 0) AS is_break
    FROM {events} WHERE refusal_code = 0
        AND type IN ('high_watermark', 'key_signalled', 'leadership', 'truncation', 'partition_removed')
), moves AS (
    SELECT run_id, topic, partition, kind, call_number, time_ms, if(kind = 'signal' OR is_break, 0, offset) AS mark,
        0L AS above, if(kind = 'signal', offset, 0) AS signals, is_break FROM applied
    UNION ALL SELECT run_id, topic, partition, kind, call_number, time_ms, reached_offset, required_offset, 0, false
    FROM {outcomes} WHERE outcome = 'satisfied' AND kind IN ('produce', 'delete_records') AND waited_ms > 0
), steps AS (
    SELECT *, NULL AS wait FROM moves LEFT SEMI JOIN waits USING (run_id, topic, partition, kind)
    UNION ALL SELECT run_id, topic, partition, kind, call_number, time_ms,
        if(kind = 'signal', required_offset - reached_offset, required_offset), 0, 0, false,
        struct(item, session_number, operation_id, topic, kind, call_number, waited_ms, timeout_ms,
            time_ms - waited_ms AS began_ms, error_code = 0 AS is_resolved,
            kind <> 'signal' OR item_count = 1 AS is_shown)
    FROM waits
), counted AS (
    SELECT * EXCEPT (mark), mark + sum(signals) OVER (
        PARTITION BY run_id, topic, partition, kind ORDER BY call_number, wait IS NOT NULL) AS mark FROM steps
), placed AS (
    SELECT *, min(if(is_break, call_number, NULL)) OVER (
            PARTITION BY run_id, topic, partition, kind ORDER BY call_number DESC) AS break_call,
        min(if(wait IS NULL AND NOT is_break, struct(call_number, time_ms, above), NULL)) OVER (
            PARTITION BY run_id, topic, partition, kind ORDER BY mark DESC) AS first FROM counted
), operations AS (
    SELECT run_id, min(wait) AS own, min(wait.began_ms) AS began_ms, max(if(wait.is_resolved, NULL, first)) AS last,
        bool_and(wait.is_resolved OR coalesce(wait.is_shown AND first.call_number > call_number AND mark >= first.above
            AND (break_call IS NULL OR break_call > first.call_number), false)) AS is_reached
    FROM placed WHERE wait IS NOT NULL GROUP BY run_id, wait.session_number, wait.operation_id
), known AS (SELECT *, is_reached AND last IS NOT NULL AS is_known FROM operations)
SELECT run_id, own.topic, own.kind, own.timeout_ms, if(is_known, 'reached', 'expired') AS fate,
    if(is_known, last.call_number, own.call_number) AS call_number,
    if(is_known, greatest(last.time_ms - began_ms, own.timeout_ms + 1), own.waited_ms) AS waited_ms
FROM known
