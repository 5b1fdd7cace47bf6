-- Sums of the groups by topic, kind and the column `by`. `lost_ms`: how much longer these waits took than as many of the
-- others of the same topic and kind (null if there are none). Made of: rows (of rolled_up.sql); by.
WITH sums AS (
    SELECT topic, kind, IDENTIFIER({by}), sum(ended) AS waits, sum(satisfied) AS satisfied, sum(expired) AS expired,
        sum(waited_total_ms) AS waited_total_ms, sum(expired_total_ms) AS expired_total_ms
    FROM {rows} WHERE level = 0
    GROUP BY topic, kind, IDENTIFIER({by})
)
SELECT *, floor(waited_total_ms - waits * try_divide(
    sum(waited_total_ms) OVER (alike) - waited_total_ms, sum(waits) OVER (alike) - waits)) AS lost_ms
FROM sums WHERE waits > 0
WINDOW alike AS (PARTITION BY topic, kind)
