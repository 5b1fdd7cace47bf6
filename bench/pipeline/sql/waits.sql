-- Hot keys, the deepest backlog and the curve of waits. Made of: groups, topics, unfinished.

CREATE OR REPLACE TEMP TABLE topics AS
SELECT * FROM topics JOIN (SELECT topic, kind, count(DISTINCT partition) AS partitions FROM groups GROUP BY ALL)
USING (topic, kind);

CREATE OR REPLACE TEMP TABLE hot_keys AS
WITH counted AS (
    SELECT topic, partition, kind, count(*) AS waits, sum(waited_ms)::BIGINT AS waited_total_ms
    FROM outcomes GROUP BY ALL
)
(SELECT 'waits' AS "by", row_number() OVER (ORDER BY waits DESC, topic, partition, kind) AS rank, *,
    waits / sum(waits) OVER () AS share
 FROM counted QUALIFY rank <= 20)
UNION ALL
(SELECT 'waited', row_number() OVER (ORDER BY waited_total_ms DESC, topic, partition, kind) AS rank, *,
    waited_total_ms / greatest(sum(waited_total_ms) OVER (), 1) AS share
 FROM counted QUALIFY rank <= 20);

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
