-- The table `hot_keys`. Made of: lost (lost.sql by partition); top (the rows of each list).
WITH listed AS (
    SELECT by, topic, partition, kind, waits, waited_total_ms, lost_ms, amount,
        row_number() OVER (PARTITION BY by ORDER BY amount DESC, topic, partition, kind) AS rank,
        sum(if(by = 'waits', waits, waited_total_ms)) OVER (PARTITION BY by) AS whole
    FROM {lost} LATERAL VIEW stack(3, 'waits', waits, 'waited', waited_total_ms, 'lost', lost_ms) AS by, amount
)
SELECT *, amount / greatest(whole, 1) AS share FROM listed WHERE rank <= {top} AND (by <> 'lost' OR amount > 0)
