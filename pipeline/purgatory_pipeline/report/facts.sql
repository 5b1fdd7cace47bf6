-- All facts. Made of: registered (registered_counts.sql); outcomes, unfinished and carried_in; window_ms.
WITH measured AS (
    SELECT at, topic, partition, kind, principal, item, outcome AS fate, waited_ms, lateness_ms FROM {outcomes}
    UNION ALL
    SELECT at, topic, partition, kind, principal, item, 'unfinished', waited_ms, NULL FROM {unfinished}
    UNION ALL
    SELECT at, topic, partition, kind, principal, item, 'carried_in', entered_ms, NULL FROM {carried_in}
)
SELECT unix_millis(at) div {window_ms} AS window, coalesce(topic, '') AS topic, coalesce(partition, -1) AS partition,
    kind, coalesce(principal, '') AS principal, fate, waited_ms, lateness_ms, count(*) AS waits,
    count_if(item = 0) AS operations
FROM measured GROUP BY ALL
UNION ALL
SELECT window, topic, partition, kind, principal, if(refused, 'refused', 'registered') AS fate, NULL, NULL, sum(waits),
    sum(operations)
FROM {registered} GROUP BY window, topic, partition, kind, principal, fate
