-- Registrations by window, group, timeout and refusal. Made of: registrations; window_ms.
-- A refused registration may have been undecodable; it then has neither topic nor principal.
SELECT unix_millis(at) div {window_ms} AS window, coalesce(topic, '') AS topic, coalesce(partition, -1) AS partition,
    kind, coalesce(principal, '') AS principal, timeout_ms, refusal_code <> 0 AS refused, count(*) AS waits,
    count_if(item = 0) AS operations
FROM {registrations} GROUP BY ALL
