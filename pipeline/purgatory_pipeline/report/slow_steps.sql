-- By wait, for each replica (-1: the leader) its first event during the wait that has the offset, and any other event
-- that may have ended the wait. The moment of an event orders a run's events: 24 bits are the row, the others the call.
-- Made of: events; waits (slow_slots.sql).
WITH happened AS (
    SELECT xxhash64(run_id, topic, partition, shiftright(time_ms, 10)) AS place, type, call_number, time_ms, offset,
        shiftleft(call_number, 24) | row AS moment, if(type = 'follower_progress', replica_id, -1) AS replica
    FROM {events}
    WHERE refusal_code = 0 AND type IN ('leader_append', 'follower_progress', 'high_watermark')
), steps AS (
    SELECT wait, type, replica, min(moment) AS moment, min(time_ms) AS at_ms FROM happened JOIN {waits} USING (place)
    WHERE time_ms >= begin_ms - 256 AND call_number <= end_call AND offset >= required_offset
    GROUP BY wait, type, replica
)
SELECT wait, collect_list(struct(moment, at_ms, type, replica)) AS steps FROM steps GROUP BY wait
