-- A server may leave recovery between two calls, but it cannot enter recovery during a connection. Each CASE therefore
-- uses the recovery state read at the start. OFFSET 0 prevents the planner from duplicating that call. Logical senders
-- and programs that only receive the log are not replicas; the latter report no replay_lsn. Slot invalidation is
-- reported in columns that were added in different releases (wal_status 13, conflicting 16, invalidation_reason 17).
-- Read as JSON, a missing column is null.
SELECT r.recovers,
       (CASE WHEN r.recovers THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0')::bigint,
       CASE WHEN r.recovers THEN (SELECT received_tli FROM pg_stat_wal_receiver)
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       CASE WHEN r.recovers THEN NULL ELSE (
         SELECT coalesce(json_agg(json_build_array(s.application_name, (s.replay_lsn - '0/0')::bigint)), '[]')
         FROM pg_stat_replication s LEFT JOIN pg_replication_slots l ON l.active_pid = s.pid
         WHERE s.state IN ('streaming', 'catchup') AND s.replay_lsn IS NOT NULL
               AND l.slot_type IS DISTINCT FROM 'logical'
       ) END,
       CASE WHEN r.recovers THEN NULL ELSE (
         SELECT coalesce(json_object_agg(slot_name, json_build_array((confirmed_flush_lsn - '0/0')::bigint,
           CASE WHEN slot->>'invalidation_reason' IS NOT NULL THEN slot->>'invalidation_reason'
                WHEN slot->>'wal_status' = 'lost' THEN 'wal_removed'
                WHEN slot->>'conflicting' = 'true' THEN 'conflict with recovery' END)), '{}')
         FROM (SELECT l.*, to_jsonb(l) AS slot FROM pg_replication_slots l) slots
         WHERE slot_type = 'logical'
       ) END
FROM (SELECT pg_is_in_recovery() AS recovers OFFSET 0) r
