-- What held slow produces back: counts by replica and duration. Made of: slow; reached (slow_steps.sql); roles (replica_roles.sql).
-- `states`: ranges of calls during which a partition had the same in-sync replicas and leader. If the in-sync replicas
-- are unknown, every replica counts. No follower has the offset before its leader, so an append after the last
-- follower's step is not the first one. Of an operation on several partitions, the most certain cause counts.
WITH stayed AS (
    SELECT run_id, topic, partition, call_number AS end_call, min_by(in_sync, row) AS stayed FROM {roles}
    WHERE type = 'in_sync_replicas' GROUP BY run_id, topic, partition, call_number
), states AS (
    SELECT run_id, topic, partition, call_number AS from_call, lead(call_number) OVER told AS to_call,
        last_value(if(size(in_sync) > 0, in_sync, NULL)) IGNORE NULLS OVER told AS members,
        last_value(if(leader_id >= 0, leader_id, NULL)) IGNORE NULLS OVER told AS leader
    FROM {roles} WINDOW told AS (PARTITION BY run_id, topic, partition ORDER BY call_number, row)
), waits AS (
    SELECT w.*, members, leader, stayed, filter(steps, step -> step.type = 'follower_progress') AS progress,
        sort_array(filter(progress, step -> coalesce(array_contains(members, step.replica), true)), false) AS followers,
        get(followers, 0) AS latest, get(followers, 1) AS earlier,
        get(filter(steps, step -> step.type = 'leader_append'), 0) AS append,
        array_sort(array_except(array_except(members, stayed), transform(progress, step -> step.replica))) AS gone,
        exists(steps, step -> step.type = 'high_watermark' AND shiftright(step.moment, 24) = w.end_call) AS is_told
    FROM {slow} w LEFT JOIN {reached} r ON w.wait = r.wait
    LEFT JOIN stayed t ON w.run_id = t.run_id AND w.topic = t.topic AND w.partition = t.partition
        AND w.end_call = t.end_call
    LEFT JOIN states s ON w.run_id = s.run_id AND w.topic = s.topic AND w.partition = s.partition
        AND s.from_call < w.end_call AND (s.to_call IS NULL OR s.to_call >= w.end_call)
), caused AS (
    SELECT *, CASE WHEN shiftright(latest.moment, 24) = end_call THEN 'follower'
            WHEN shiftright(append.moment, 24) = end_call THEN 'leader'
            WHEN size(gone) > 0 THEN 'left' WHEN is_told THEN 'told' ELSE 'unknown' END AS cause,
        if(latest IS NULL OR append.at_ms <= latest.at_ms, append.at_ms, NULL) AS appended_ms FROM waits
), judged AS (
    SELECT *, array_position(array('unknown', 'told', 'left', 'leader', 'follower'), cause) AS rank,
        CASE cause WHEN 'follower' THEN latest.replica WHEN 'leader' THEN coalesce(leader, -1)
            WHEN 'left' THEN get(gone, 0) END AS replica_id,
        CASE cause WHEN 'follower' THEN coalesce(earlier.at_ms, appended_ms)
            WHEN 'left' THEN coalesce(latest.at_ms, appended_ms) ELSE latest.at_ms END AS second_ms,
        CASE cause WHEN 'follower' THEN latest.moment WHEN 'leader' THEN append.moment ELSE 0 END & 16777215 AS row,
        if(replica_id IS NULL, NULL, end_ms - greatest(coalesce(second_ms, begin_ms), begin_ms)) AS held_ms
    FROM caused
), operations AS (
    SELECT max(struct(rank, row, partition, topic, cause, replica_id, held_ms, waited_ms)) AS best FROM judged
    GROUP BY run_id, session_number, operation_id
)
SELECT best.topic, best.cause, best.replica_id, best.held_ms, count(*) AS waits, sum(best.waited_ms) AS waited_ms
FROM operations GROUP BY ALL
