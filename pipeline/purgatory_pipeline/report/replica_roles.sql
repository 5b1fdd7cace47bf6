-- Changes of in-sync replicas and leaders. Few rows. Made of: events.
SELECT run_id, topic, partition, call_number, row, type, in_sync, leader_id FROM {events}
WHERE refusal_code = 0 AND type IN ('in_sync_replicas', 'leadership')
