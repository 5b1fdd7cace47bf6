-- Operations that do not have exactly one registration and one outcome, counted by run. `early`: registered before the
-- run's first registration in the archive. `before_run`: registered before the run started. `continued`: the other half
-- is in another run, because a journal kept the operation across a restart. Made of: registrations and outcomes, of all
-- buckets that differ; runs (first_at, started_at); since_ms and until_ms; accepted.
WITH halves AS (
    SELECT run_id, session_number, operation_id, call_number AS begun_by, NULL AS ended_by, time_ms AS registered_ms,
        unix_millis(at) AS at_ms
    FROM {registrations} WHERE item = 0 AND refusal_code = {accepted}
    UNION ALL
    SELECT run_id, session_number, operation_id, NULL, call_number, time_ms - waited_ms, unix_millis(at) - waited_ms
    FROM {outcomes} WHERE item = 0
), operations AS (
    SELECT run_id, session_number, operation_id, min(registered_ms) AS registered_ms, min(at_ms) AS at_ms,
        count(DISTINCT begun_by) AS registrations, count(DISTINCT ended_by) AS outcomes,
        bool_or(at_ms >= {since_ms} AND at_ms < {until_ms} AND begun_by IS NOT NULL) AS begun_inside,
        bool_or(at_ms >= {since_ms} AND at_ms < {until_ms} AND ended_by IS NOT NULL) AS ended_inside
    FROM halves GROUP BY run_id, session_number, operation_id
), judged AS (
    SELECT *, CASE
        WHEN outcomes = 0 AND begun_inside THEN 'no outcome'
        WHEN registrations = 0 AND ended_inside THEN 'no registration'
        WHEN (registrations > 1 OR outcomes > 1) AND (begun_inside OR ended_inside) THEN 'repeated' END AS what
    FROM operations
), paired AS (
    -- With a journal, sessions keep their numbers across a restart. Unary waits (session 0) end with their daemon.
    SELECT *, session_number > 0 AND bool_or(what = 'no outcome') OVER wait
        AND bool_or(what = 'no registration') OVER wait AS continued
    FROM judged WHERE what IS NOT NULL
    WINDOW wait AS (PARTITION BY session_number, operation_id, registered_ms)
)
SELECT run_id, what, coalesce(at_ms < unix_millis(first_at), true) AS early,
    coalesce(at_ms < unix_millis(started_at), false) AS before_run, continued, count(*) AS operations
FROM paired LEFT JOIN {runs} USING (run_id) GROUP BY ALL
