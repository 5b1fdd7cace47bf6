-- Constant for the lifetime of a connection. The control file's timelines are the fallback for a replica that restores
-- from an archive or receives nothing at the moment; they may be outdated, but never ahead.
SELECT (SELECT system_identifier FROM pg_control_system()),
       current_setting('wal_block_size')::bigint,
       pg_size_bytes(current_setting('wal_segment_size')),
       current_setting('cluster_name'),
       (SELECT conninfo FROM pg_stat_wal_receiver),
       greatest((SELECT timeline_id FROM pg_control_checkpoint()),
                (SELECT min_recovery_end_timeline FROM pg_control_recovery()))
