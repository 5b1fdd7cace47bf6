-- Slow waits by slots of 2**10 ms, in which they are joined with events. Made of: slow.
SELECT wait, begin_ms, end_call, required_offset, xxhash64(run_id, topic, partition, slot) AS place FROM {slow}
    LATERAL VIEW explode(sequence(shiftright(begin_ms - 256, 10), shiftright(end_ms, 10))) AS slot
