-- How waits ended and how long they took, by topic (of signals: the key) and kind.
CREATE MATERIALIZED VIEW percentiles AS
SELECT topic, kind, count(*) AS registered, count(outcome) AS ended, count_if(outcome = 'satisfied') AS satisfied,
    count_if(outcome = 'expired') AS expired,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY waited_ms) AS wait_p50_ms,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY waited_ms) AS wait_p99_ms
FROM operations
GROUP BY topic, kind;
