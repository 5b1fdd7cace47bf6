-- Hot keys, the deepest backlog and the curve of waits. Made of: groups, topics, unfinished.

CREATE OR REPLACE TEMP TABLE topics AS
SELECT * FROM topics JOIN (SELECT topic, kind, count(DISTINCT partition) AS partitions FROM groups GROUP BY ALL)
USING (topic, kind);

CREATE OR REPLACE TEMP TABLE hot_keys AS
WITH summed AS (
    SELECT topic, partition, kind, count(*) AS waits, sum(waited_ms)::BIGINT AS waited_total_ms
    FROM outcomes GROUP BY ALL
), counted AS (
    SELECT *, floor(waited_total_ms - waits * ((sum(waited_total_ms) OVER alike - waited_total_ms)
            / nullif(sum(waits) OVER alike - waits, 0)))::BIGINT AS lost_ms,
        sum(waits) OVER () AS all_waits, sum(waited_total_ms) OVER () AS all_ms
    FROM summed WINDOW alike AS (PARTITION BY topic, kind)
), listed AS (
    SELECT 'waits' AS "by", waits AS amount, all_waits AS everything, * FROM counted
    UNION ALL SELECT 'waited', waited_total_ms, all_ms, * FROM counted
    UNION ALL SELECT 'lost', lost_ms, all_ms, * FROM counted WHERE lost_ms > 0
)
SELECT "by", row_number() OVER (PARTITION BY "by" ORDER BY amount DESC, topic, partition, kind) AS rank,
    topic, partition, kind, waits, waited_total_ms, lost_ms, amount / greatest(everything, 1) AS share
FROM listed QUALIFY rank <= 20;

CREATE OR REPLACE TEMP TABLE principals AS
WITH summed AS (
    SELECT topic, kind, principal, count(*) AS waits, count(*) FILTER (outcome = 'satisfied') AS satisfied,
        count(*) FILTER (outcome = 'expired') AS expired, sum(waited_ms)::BIGINT AS waited_total_ms,
        coalesce(sum(waited_ms) FILTER (outcome = 'expired'), 0)::BIGINT AS expired_total_ms
    FROM outcomes GROUP BY ALL
), counted AS (
    SELECT *, floor(waited_total_ms - waits * ((sum(waited_total_ms) OVER alike - waited_total_ms)
        / nullif(sum(waits) OVER alike - waits, 0)))::BIGINT AS lost_ms
    FROM summed WINDOW alike AS (PARTITION BY topic, kind)
)
SELECT principal, kind, sum(waits)::BIGINT AS waits, sum(satisfied)::BIGINT AS satisfied,
    sum(expired)::BIGINT AS expired, sum(waited_total_ms)::BIGINT AS waited_total_ms,
    sum(expired_total_ms)::BIGINT AS expired_total_ms, sum(lost_ms)::BIGINT AS lost_ms
FROM counted GROUP BY ALL;

-- The error budget of an objective of 95 %.
CREATE OR REPLACE TEMP TABLE budget AS
WITH counted AS (
    SELECT o.kind, if(o.kind = 'signal', '', o.topic) AS topic, o.principal, date_trunc('day', o."at") AS day, o.outcome
    FROM outcomes o LEFT JOIN registrations r USING (run_id, session_number, operation_id, item)
    WHERE o.item = 0 AND coalesce(r.timeout_ms, 1) > 0
)
SELECT kind, topic, principal, day, count(*) AS operations, count(*) FILTER (outcome = 'expired') AS expired,
    expired / operations / (1 - 0.95) AS burnt
FROM counted GROUP BY GROUPING SETS ((kind, topic, principal), (kind, topic, principal, day));

CREATE OR REPLACE TEMP TABLE backlog AS
WITH steps AS (
    SELECT run_id, topic, partition, kind, time_ms - waited_ms AS time_ms, 1 AS step,
        epoch_ms("at") - waited_ms AS at_ms
    FROM outcomes WHERE waited_ms > 0
    UNION ALL
    SELECT run_id, topic, partition, kind, time_ms, -1, epoch_ms("at") FROM outcomes WHERE waited_ms > 0
    UNION ALL
    SELECT run_id, topic, partition, kind, time_ms, 1, epoch_ms("at") FROM unfinished WHERE waited_ms IS NOT NULL
), nets AS (
    SELECT run_id, topic, partition, kind, time_ms, sum(step)::BIGINT AS step, min(at_ms) AS at_ms FROM steps
    GROUP BY ALL
), pending AS (
    SELECT run_id, topic, partition, kind, at_ms,
        (sum(step) OVER (PARTITION BY run_id, topic, partition, kind ORDER BY time_ms))::BIGINT AS pending
    FROM nets
), best AS (
    SELECT topic, partition, kind, max(pending) AS deepest, max((pending << 42) - at_ms) AS score,
        arg_max(run_id, (pending << 42) - at_ms) AS run_id
    FROM pending WHERE pending > 0 GROUP BY ALL
)
SELECT topic, partition, kind, deepest, run_id, make_timestamptz(((deepest << 42) - score) * 1000) AS "at" FROM best;

CREATE OR REPLACE TEMP TABLE timeouts_used AS
SELECT topic, kind, timeout_ms, count(*) AS operations FROM registrations
WHERE item = 0 AND refusal_code = 0 GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE ended AS
SELECT topic, kind, run_id, call_number, waited_ms, outcome FROM outcomes
WHERE item = 0 AND NOT (outcome = 'expired' AND kind IN ('produce', 'delete_records', 'signal'))
UNION ALL SELECT topic, kind, run_id, call_number, waited_ms, fate FROM missed;
CREATE OR REPLACE TEMP TABLE curve AS
SELECT topic, kind, waited_ms, count(*) FILTER (outcome IN ('satisfied', 'reached')) AS satisfied,
    count(*) FILTER (outcome = 'satisfied') AS done,
    count(*) FILTER (outcome = 'failed') AS failed, count(*) FILTER (outcome = 'cancelled') AS cancelled,
    count(*) FILTER (outcome IN ('expired', 'reached')) AS expired,
    count(*) FILTER (outcome = 'expired' AND kind IN ('produce', 'delete_records', 'signal')) AS unreached,
    count(*) FILTER (outcome = 'entered') AS entered,
    count(*) FILTER (outcome NOT IN ('satisfied', 'reached', 'failed', 'cancelled', 'entered')) AS censored
FROM (
    SELECT topic, kind, waited_ms, outcome FROM ended
    UNION ALL SELECT topic, kind, waited_ms, 'unfinished' FROM unfinished WHERE item = 0 AND waited_ms IS NOT NULL
    UNION ALL SELECT topic, kind, entered_ms, 'entered' FROM carried_in WHERE item = 0
) GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE expired_under AS
SELECT topic, kind, waited_ms - lateness_ms AS timeout_ms, count(*) AS expired
FROM outcomes WHERE item = 0 AND outcome = 'expired' GROUP BY ALL;
