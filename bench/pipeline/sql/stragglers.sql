-- The slowest hundredth of the produces, and which replica held each back.

CREATE OR REPLACE TEMP TABLE slow AS
WITH produces AS (SELECT * FROM outcomes WHERE kind = 'produce' AND outcome = 'satisfied'),
limits AS (SELECT quantile_disc(waited_ms, 0.99) AS slow_over_ms FROM produces WHERE item = 0)
SELECT run_id, session_number, operation_id, topic, partition, call_number AS end_call, time_ms AS end_ms,
    time_ms - waited_ms AS begin_ms, waited_ms, required_offset
FROM produces, limits WHERE waited_ms > slow_over_ms;

CREATE OR REPLACE TEMP TABLE reached AS
WITH waits AS (
    SELECT *, unnest(range((begin_ms - 256) // 1024, end_ms // 1024 + 1)) AS slot FROM slow
), happened AS (
    SELECT run_id, topic, partition, time_ms // 1024 AS slot, type, call_number, "row", time_ms, "offset", in_sync,
        if(type = 'follower_progress', replica_id, -1) AS replica
    FROM events
    WHERE refusal_code = 0 AND type IN ('leader_append', 'follower_progress', 'high_watermark', 'in_sync_replicas')
)
SELECT w.run_id, session_number, operation_id, w.topic, w.partition, type, replica,
    min({'call': call_number, 'row': "row", 'time_ms': time_ms, 'in_sync': in_sync}) AS first
FROM waits w JOIN happened h USING (run_id, topic, partition, slot)
WHERE h.time_ms >= begin_ms - 256 AND call_number <= end_call
    AND if(type = 'in_sync_replicas', call_number = end_call, "offset" >= required_offset)
GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE held AS
WITH states AS (
    SELECT run_id, topic, partition, call_number AS from_call,
        last_value(CASE WHEN len(in_sync) > 0 THEN in_sync END IGNORE NULLS) OVER told AS members,
        last_value(CASE WHEN leader_id >= 0 THEN leader_id END IGNORE NULLS) OVER told AS leader,
        lead(call_number) OVER told AS to_call
    FROM events WHERE refusal_code = 0 AND type IN ('in_sync_replicas', 'leadership')
    WINDOW told AS (PARTITION BY run_id, topic, partition ORDER BY call_number, "row")
), known AS (
    SELECT s.*, members, leader FROM slow s LEFT JOIN states t
    ON s.run_id = t.run_id AND s.topic = t.topic AND s.partition = t.partition AND from_call < end_call
        AND (to_call IS NULL OR to_call >= end_call)
), steps AS (
    SELECT k.*, type, replica, first.call AS call, first.row AS step_row, first.time_ms AS at_ms,
        first.in_sync AS stayed,
        type = 'follower_progress' AND (members IS NULL OR list_contains(members, replica)) AS is_follower
    FROM known k LEFT JOIN reached USING (run_id, session_number, operation_id, topic, partition)
), waits AS (
    SELECT run_id, session_number, operation_id, topic, partition, end_call, end_ms, begin_ms, waited_ms, members,
        leader,
        list({'call': call, 'row': step_row, 'at_ms': at_ms, 'replica': replica} ORDER BY call DESC, step_row DESC)
            FILTER (is_follower) AS followers,
        any_value({'call': call, 'row': step_row, 'at_ms': at_ms}) FILTER (type = 'leader_append') AS append,
        bool_or(type = 'high_watermark' AND call = end_call) AS told,
        list(replica) FILTER (type = 'follower_progress') AS had_it,
        any_value(stayed) FILTER (type = 'in_sync_replicas') AS stayed
    FROM steps GROUP BY ALL
), gone AS (
    SELECT *, list_sort(list_filter(members, lambda m: stayed IS NOT NULL AND NOT list_contains(stayed, m)
        AND NOT coalesce(list_contains(had_it, m), FALSE))) AS gone
    FROM waits
), judged AS (
    SELECT *, CASE WHEN followers[1].call = end_call THEN 'follower' WHEN append.call = end_call THEN 'leader'
            WHEN len(gone) > 0 THEN 'left' WHEN told THEN 'told' ELSE 'unknown' END AS cause,
        CASE WHEN followers[1] IS NULL OR append.at_ms <= followers[1].at_ms THEN append.at_ms END AS appended_ms
    FROM gone
), blamed AS (
    SELECT *, CASE cause WHEN 'follower' THEN followers[1].replica WHEN 'leader' THEN coalesce(leader, -1)
            WHEN 'left' THEN gone[1] END AS replica_id,
        CASE cause WHEN 'follower' THEN coalesce(followers[2].at_ms, appended_ms)
            WHEN 'left' THEN coalesce(followers[1].at_ms, appended_ms) ELSE followers[1].at_ms END AS second_ms,
        list_position(['unknown', 'told', 'left', 'leader', 'follower'], cause) AS rank,
        CASE cause WHEN 'follower' THEN followers[1].row WHEN 'leader' THEN append.row ELSE 0 END AS end_row
    FROM judged
)
SELECT run_id, session_number, operation_id, topic, cause, replica_id, waited_ms,
    if(replica_id IS NULL, NULL, end_ms - greatest(coalesce(second_ms, begin_ms), begin_ms)) AS held_ms
FROM blamed
QUALIFY row_number() OVER (
    PARTITION BY run_id, session_number, operation_id ORDER BY rank DESC, end_row DESC, partition DESC, topic DESC
) = 1;

CREATE OR REPLACE TEMP TABLE slow_produces AS
SELECT cause, count(*) AS operations, sum(waited_ms)::BIGINT AS waited_total_ms,
    count(*) / sum(count(*)) OVER () AS share
FROM held GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE stragglers AS
SELECT topic, replica_id, count(*) AS held_back, sum(held_ms)::BIGINT AS total_ms,
    quantile_disc(held_ms, 0.5) AS median_ms, quantile_disc(held_ms, 0.99) AS p99_ms, max(held_ms) AS max_ms,
    count(*) / sum(count(*)) OVER (PARTITION BY topic) AS share
FROM held WHERE replica_id IS NOT NULL GROUP BY GROUPING SETS ((topic, replica_id), (replica_id));
