-- Windows that differ from the same window a day before, or from the one before: a history of less than two weeks.

CREATE OR REPLACE TEMP TABLE anomalies AS
WITH large AS (SELECT topic FROM topic_windows GROUP BY topic ORDER BY sum(ended) DESC, topic LIMIT 20),
series AS (
    SELECT * FROM topic_windows SEMI JOIN large USING (topic)
    UNION ALL BY NAME SELECT NULL AS topic, * FROM windows
), pairs AS (
    SELECT s AS now, b AS before FROM series s JOIN series b
    ON s.topic IS NOT DISTINCT FROM b.topic AND s.kind = b.kind
        AND b.window_start IN (s.window_start - INTERVAL 1 DAY, s.window_start - INTERVAL 1 HOUR)
    QUALIFY row_number() OVER (PARTITION BY s.topic, s.kind, s.window_start ORDER BY b.window_start) = 1
), told AS (
    SELECT now.topic AS topic, now.kind AS kind, now.window_start AS window_start, before.window_start AS compared_with,
        unnest([
            {'measure': 'registered', 'value': now.registered, 'usual': before.registered,
              'change': ln(now.registered + 0.5) - ln(before.registered + 0.5),
              'error': 1 / (now.registered + 0.5) + 1 / (before.registered + 0.5),
              'least': least(now.registered, before.registered)},
            {'measure': 'wait_p50_ms', 'value': now.wait_p50_ms, 'usual': before.wait_p50_ms,
              'change': ln(now.wait_p50_ms + 1) - ln(before.wait_p50_ms + 1),
              'error': 1.25 ** 2 / now.ended + 1.25 ** 2 / before.ended, 'least': least(now.ended, before.ended)},
            {'measure': 'wait_p99_ms', 'value': now.wait_p99_ms, 'usual': before.wait_p99_ms,
              'change': ln(now.wait_p99_ms + 1) - ln(before.wait_p99_ms + 1),
              'error': 3.7 ** 2 / now.ended + 3.7 ** 2 / before.ended, 'least': least(now.ended, before.ended)},
            {'measure': 'expiry_rate', 'value': now.expired / now.ended, 'usual': before.expired / before.ended,
              'change': ln((now.expired + 0.5) / (now.ended - now.expired + 0.5))
                  - ln((before.expired + 0.5) / (before.ended - before.expired + 0.5)),
              'error': 1 / (now.expired + 0.5) + 1 / (now.ended - now.expired + 0.5)
                  + 1 / (before.expired + 0.5) + 1 / (before.ended - before.expired + 0.5),
              'least': least(now.ended, before.ended)},
            {'measure': 'completion_rate', 'value': now.satisfied / now.ended, 'usual': before.satisfied / before.ended,
              'change': ln((now.satisfied + 0.5) / (now.ended - now.satisfied + 0.5))
                  - ln((before.satisfied + 0.5) / (before.ended - before.satisfied + 0.5)),
              'error': 1 / (now.satisfied + 0.5) + 1 / (now.ended - now.satisfied + 0.5)
                  + 1 / (before.satisfied + 0.5) + 1 / (before.ended - before.satisfied + 0.5),
              'least': least(now.ended, before.ended)}
        ], recursive := true)
    FROM pairs
), centred AS (
    SELECT *, change - median(change) OVER (PARTITION BY topic, kind, measure) AS off FROM told WHERE "least" >= 100
), scored AS (
    SELECT *, if(off > 0, 'up', 'down') AS direction,
        abs(off) / sqrt(error + (1.4826 * median(abs(off)) OVER (PARTITION BY topic, kind, measure)) ** 2 + 0.05 ** 2)
            AS score
    FROM centred QUALIFY score >= 3.5
)
SELECT s.window_start, s.topic, s.kind, s.measure, s.value, s.usual,
    if(s.window_start - s.compared_with = INTERVAL 1 DAY, 'day', 'window') AS basis, s.compared_with, s.direction, s.score
FROM scored s ANTI JOIN scored o
    ON s.topic IS NOT DISTINCT FROM o.topic AND s.kind = o.kind AND s.measure = o.measure
        AND s.compared_with = o.window_start AND s.direction <> o.direction
ORDER BY score DESC, window_start, topic, kind, measure LIMIT 1000;
