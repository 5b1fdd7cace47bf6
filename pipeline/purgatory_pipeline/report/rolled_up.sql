-- Counts, rates and quantiles of the rows of each level: the columns of the tables `groups`, `topics` and `windows`.
-- Made of: facts; few (condensed facts).

-- A fact is repeated once for each level, so that one shuffle serves all of them. `weight` says how much it counts.
WITH levels AS (
    SELECT 0 AS level, window, topic, partition, kind, principal, partition AS counted_partition, fate, waited_ms,
        lateness_ms, waits AS weight
    FROM {facts}
    UNION ALL
    SELECT 1, NULL, topic, NULL, kind, NULL, partition, fate, waited_ms, lateness_ms, waits FROM {facts}
    UNION ALL
    SELECT 2, window, NULL, NULL, kind, NULL, NULL, fate, waited_ms, lateness_ms, operations FROM {few}
    UNION ALL
    SELECT 3, window, topic, NULL, kind, NULL, NULL, fate, waited_ms, lateness_ms, operations FROM {few}
), weighed AS (
    SELECT *, if(fate IN ('satisfied', 'failed', 'expired', 'cancelled', 'shutting_down'), weight, 0) AS end_weight,
        if(fate = 'expired', weight, 0) AS expiry_weight
    FROM levels WHERE weight > 0
), ordered AS (
    SELECT *, sum(end_weight) OVER by_wait AS through, sum(end_weight) OVER whole AS total,
        sum(expiry_weight) OVER by_lateness AS late_through, sum(expiry_weight) OVER whole AS late_total
    FROM weighed
    WINDOW whole AS (PARTITION BY level, window, topic, partition, kind, principal),
        by_wait AS (PARTITION BY level, window, topic, partition, kind, principal ORDER BY waited_ms),
        by_lateness AS (PARTITION BY level, window, topic, partition, kind, principal ORDER BY lateness_ms)
)
SELECT level, window, topic, partition, kind, principal, count(DISTINCT counted_partition) AS partitions,
    sum(if(fate IN ('registered', 'refused'), weight, 0)) AS registered,
    sum(if(fate = 'refused', weight, 0)) AS refused,
    sum(end_weight) AS ended,
    sum(if(fate = 'satisfied', weight, 0)) AS satisfied,
    sum(if(fate = 'failed', weight, 0)) AS failed,
    sum(expiry_weight) AS expired,
    sum(if(fate = 'cancelled', weight, 0)) AS cancelled,
    sum(if(fate = 'shutting_down', weight, 0)) AS shutting_down,
    sum(if(fate = 'unfinished', weight, 0)) AS unfinished,
    sum(if(fate = 'carried_in', weight, 0)) AS carried_in,
    try_divide(sum(if(fate = 'satisfied', weight, 0)), sum(end_weight)) AS completion_rate,
    try_divide(sum(expiry_weight), sum(end_weight)) AS expiry_rate,
    coalesce(sum(end_weight * waited_ms), 0) AS waited_total_ms,
    coalesce(sum(expiry_weight * waited_ms), 0) AS expired_total_ms,
    min(if(end_weight > 0 AND through * 1000 >= total * 500, waited_ms, NULL)) AS wait_p50_ms,
    min(if(end_weight > 0 AND through * 1000 >= total * 900, waited_ms, NULL)) AS wait_p90_ms,
    min(if(end_weight > 0 AND through * 1000 >= total * 990, waited_ms, NULL)) AS wait_p99_ms,
    min(if(end_weight > 0 AND through * 1000 >= total * 999, waited_ms, NULL)) AS wait_p999_ms,
    max(if(end_weight > 0, waited_ms, NULL)) AS wait_max_ms,
    min(if(expiry_weight > 0 AND late_through * 1000 >= late_total * 500, lateness_ms, NULL)) AS lateness_p50_ms,
    min(if(expiry_weight > 0 AND late_through * 1000 >= late_total * 990, lateness_ms, NULL)) AS lateness_p99_ms,
    max(if(expiry_weight > 0, lateness_ms, NULL)) AS lateness_max_ms
FROM ordered
GROUP BY level, window, topic, partition, kind, principal
