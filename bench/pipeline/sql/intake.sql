-- Rows, clocks and repeated operations of an archive; what never ended, and what ends that never began.

CREATE OR REPLACE TEMP TABLE account AS
WITH steps AS (
    SELECT "table", run_id, time_ms - lag(time_ms) OVER told AS engine_ms,
        "at" - lag("at") OVER told AS wall
    FROM (
        SELECT 'registrations' AS "table", run_id, call_number, min(time_ms) AS time_ms, min("at") AS "at"
        FROM registrations GROUP BY ALL
        UNION ALL
        SELECT 'outcomes', run_id, call_number, min(time_ms), min("at") FROM outcomes GROUP BY ALL
        UNION ALL
        SELECT 'events', run_id, call_number, min(time_ms), min("at") FROM events GROUP BY ALL
    )
    WINDOW told AS (PARTITION BY "table", run_id ORDER BY call_number)
)
SELECT 'rows' AS what, 'registrations' AS "table", count(*) AS number FROM registrations
UNION ALL SELECT 'rows', 'outcomes', count(*) FROM outcomes
UNION ALL SELECT 'rows', 'events', count(*) FROM events
UNION ALL SELECT 'steps back of the engine', "table", count(*) FROM steps WHERE engine_ms < 0 GROUP BY ALL
UNION ALL SELECT 'steps back of the wall clock', "table", count(*) FROM steps WHERE wall < INTERVAL 0 MILLISECOND
    GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE repeated AS
SELECT 'registrations' AS "table", count(*) AS operations FROM (
    SELECT 1 FROM registrations WHERE item = 0 GROUP BY run_id, session_number, operation_id HAVING count(*) > 1
)
UNION ALL
SELECT 'outcomes', count(*) FROM (
    SELECT 1 FROM outcomes WHERE item = 0 GROUP BY run_id, session_number, operation_id HAVING count(*) > 1
);

CREATE OR REPLACE TEMP TABLE run_ends AS
    SELECT run_id, max(time_ms) AS run_end_ms, min(time_ms) AS run_begin_ms
    FROM (SELECT run_id, time_ms FROM registrations UNION ALL SELECT run_id, time_ms FROM outcomes) GROUP BY run_id;
CREATE OR REPLACE TEMP TABLE unfinished AS
    SELECT r.*, if(run_end_ms - time_ms > timeout_ms + 60000, NULL, run_end_ms - time_ms) AS waited_ms
    FROM (
        SELECT run_id, session_number, operation_id, item, time_ms, "at", timeout_ms, topic, partition, kind, principal
        FROM registrations WHERE refusal_code = 0
    ) r ANTI JOIN outcomes o USING (run_id, session_number, operation_id, item) JOIN run_ends USING (run_id);
CREATE OR REPLACE TEMP TABLE carried_in AS
    SELECT o.*, greatest(run_begin_ms - registered_ms, 0) AS entered_ms FROM (
        SELECT run_id, session_number, operation_id, item, "at", topic, partition, kind, principal,
            time_ms - waited_ms AS registered_ms FROM outcomes
    ) o ANTI JOIN registrations r USING (run_id, session_number, operation_id, item) JOIN run_ends USING (run_id);
