-- The table `principals`. Made of: lost (lost.sql by principal).
SELECT principal, kind, sum(waits) AS waits, sum(satisfied) AS satisfied, sum(expired) AS expired,
    sum(waited_total_ms) AS waited_total_ms, sum(expired_total_ms) AS expired_total_ms, sum(lost_ms) AS lost_ms
FROM {lost} GROUP BY principal, kind
