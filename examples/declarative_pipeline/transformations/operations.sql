-- Accepted registrations with their outcomes: a row for each partition or key of an operation. `outcome` is null where none
-- is known: still pending, lost in a crash, or, with a journal, in the daemon's next run (the report finds those).
CREATE MATERIALIZED VIEW operations AS
SELECT run_id, session_number, operation_id, item, r.kind, r.topic, r.partition, r.principal, r.timeout_ms,
    r.at AS registered_at, o.call_number AS end_call, o.outcome, o.waited_ms, o.required_offset
FROM parquet.`${spark.purgatory.archive}/registrations` r
LEFT JOIN parquet.`${spark.purgatory.archive}/outcomes` o USING (run_id, session_number, operation_id, item)
WHERE r.refusal_code = 0;
