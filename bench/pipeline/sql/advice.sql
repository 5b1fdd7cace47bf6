-- Kaplan-Meier curves, and what timeouts would do. Made of: curve, timeouts_used, topic_windows.

CREATE OR REPLACE TEMP TABLE counts AS
WITH large AS (
    SELECT topic, kind FROM topic_windows GROUP BY topic, kind
    QUALIFY row_number() OVER (PARTITION BY kind ORDER BY sum(ended + unfinished) DESC, topic) <= 20
)
SELECT * FROM curve SEMI JOIN large USING (topic, kind)
UNION ALL BY NAME
SELECT NULL AS topic, kind, waited_ms, sum(satisfied)::BIGINT AS satisfied, sum(expired)::BIGINT AS expired,
    sum(others)::BIGINT AS others
FROM curve GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE estimate AS
WITH risks AS (
    SELECT *, (sum(satisfied + others) OVER (PARTITION BY topic, kind ORDER BY waited_ms DESC))::BIGINT AS at_risk
    FROM counts
), sums AS (
    SELECT *, bool_or(at_risk = satisfied) OVER along AS is_over,
        sum(ln(greatest(at_risk - satisfied, 1) / at_risk)) OVER along AS logarithm,
        sum(satisfied / (at_risk::DOUBLE * greatest(at_risk - satisfied, 1))) OVER along AS variance
    FROM risks WINDOW along AS (PARTITION BY topic, kind ORDER BY waited_ms)
), widths AS (
    SELECT *, if(logarithm < 0, 1.959963984540054 * sqrt(variance) / abs(logarithm), 0) AS width FROM sums
)
SELECT topic, kind, waited_ms, satisfied, expired, others, at_risk, at_risk >= 10 AS is_known,
    if(is_over, 0, exp(logarithm)) AS waiting,
    if(is_over, NULL, exp(logarithm * exp(width))) AS waiting_low,
    if(is_over, NULL, exp(logarithm * exp(-width))) AS waiting_high
FROM widths;
CREATE OR REPLACE TEMP TABLE survival AS
WITH cells AS (
    SELECT *, floor(waiting * 200) AS height, floor(-log10(greatest(waiting, 1e-6)) * 25) AS depth,
        [height, depth, floor(log2(waited_ms + 1) * 10)] AS cell
    FROM estimate
)
SELECT topic, kind, waited_ms, waiting, waiting_low, waiting_high, at_risk FROM cells
WINDOW along AS (PARTITION BY topic, kind ORDER BY waited_ms)
QUALIFY cell IS DISTINCT FROM lag(cell) OVER along OR lead(cell) OVER along IS NULL;

CREATE OR REPLACE TEMP TABLE in_use AS
WITH counted AS (
    SELECT topic, kind, timeout_ms, operations FROM timeouts_used
    UNION ALL SELECT NULL, kind, timeout_ms, sum(operations)::BIGINT FROM timeouts_used GROUP BY ALL
)
SELECT *, row_number() OVER (of_curve ORDER BY operations DESC, timeout_ms) AS place,
    operations / sum(operations) OVER of_curve AS timeout_share, count(*) OVER of_curve AS timeouts
FROM counted WINDOW of_curve AS (PARTITION BY topic, kind) QUALIFY place <= 3;

CREATE OR REPLACE TEMP TABLE curves AS
SELECT e.topic, e.kind, sum(satisfied + others)::BIGINT AS operations, sum(satisfied)::BIGINT AS satisfied,
    sum(expired)::BIGINT AS expired, coalesce(max(waited_ms) FILTER (is_known), 0) AS seen_until_ms,
    min(waited_ms) FILTER (is_known AND waiting <= 0.5 + 1e-9) AS need_p50_ms,
    min(waited_ms) FILTER (is_known AND coalesce(waiting_low, 0) <= 0.5 + 1e-9) AS need_p50_low_ms,
    min(waited_ms) FILTER (is_known AND waiting_high <= 0.5 + 1e-9) AS need_p50_high_ms,
    min(waited_ms) FILTER (is_known AND waiting <= 0.1 + 1e-9) AS need_p90_ms,
    min(waited_ms) FILTER (is_known AND coalesce(waiting_low, 0) <= 0.1 + 1e-9) AS need_p90_low_ms,
    min(waited_ms) FILTER (is_known AND waiting_high <= 0.1 + 1e-9) AS need_p90_high_ms,
    min(waited_ms) FILTER (is_known AND waiting <= 0.01 + 1e-9) AS need_p99_ms,
    min(waited_ms) FILTER (is_known AND coalesce(waiting_low, 0) <= 0.01 + 1e-9) AS need_p99_low_ms,
    min(waited_ms) FILTER (is_known AND waiting_high <= 0.01 + 1e-9) AS need_p99_high_ms,
    min(waited_ms) FILTER (is_known AND waiting <= 0.001 + 1e-9) AS need_p999_ms,
    min(waited_ms) FILTER (is_known AND coalesce(waiting_low, 0) <= 0.001 + 1e-9) AS need_p999_low_ms,
    min(waited_ms) FILTER (is_known AND waiting_high <= 0.001 + 1e-9) AS need_p999_high_ms,
    any_value(u.timeout_ms) AS timeout_ms, any_value(u.timeout_share) AS timeout_share,
    coalesce(any_value(u.timeouts), 0) AS timeouts
FROM estimate e LEFT JOIN in_use u ON e.topic IS NOT DISTINCT FROM u.topic AND e.kind = u.kind AND place = 1
GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE timeouts AS
WITH ladder AS (
    SELECT DISTINCT step * 10 ** power // 10 AS timeout_ms
    FROM (SELECT unnest([10, 15, 20, 30, 50, 70]) AS step), (SELECT unnest(range(7)) AS power)
), candidates AS (
    SELECT topic, kind, l.timeout_ms::BIGINT AS timeout_ms FROM curves c, ladder l
    WHERE l.timeout_ms BETWEEN coalesce(c.timeout_ms, greatest(seen_until_ms, 1)) / 5
        AND coalesce(c.timeout_ms, greatest(seen_until_ms, 1)) * 5
    UNION SELECT topic, kind, timeout_ms FROM in_use
), read_off AS (
    SELECT d.topic, d.kind, d.timeout_ms, arg_max(waiting, waited_ms) AS waiting,
        arg_max(waiting_low, waited_ms) AS low, bool_or(is_known) AS is_known,
        arg_max({'high': waiting_high}, waited_ms) FILTER (is_known) AS known
    FROM candidates d LEFT JOIN estimate e
        ON d.topic IS NOT DISTINCT FROM e.topic AND d.kind = e.kind AND waited_ms <= d.timeout_ms
    GROUP BY ALL
)
SELECT c.topic, c.kind, r.timeout_ms, coalesce(r.timeout_ms = c.timeout_ms, FALSE) AS in_use,
    CASE WHEN known IS NULL THEN if(waiting IS NULL AND seen, 1, NULL) WHEN waiting = 0 THEN 0
        WHEN r.timeout_ms <= seen_until_ms THEN waiting END AS expires,
    CASE WHEN known IS NULL THEN if(waiting IS NULL AND seen, 1, 0) WHEN waiting = 0 THEN 0
        WHEN r.timeout_ms <= seen_until_ms THEN low ELSE 0 END AS expires_low,
    if(known IS NULL, 1, coalesce(known.high, least(1, 3 / operations))) AS expires_high
FROM read_off r JOIN (SELECT *, seen_until_ms > 0 OR operations >= 10 AS seen FROM curves) c
    ON c.topic IS NOT DISTINCT FROM r.topic AND c.kind = r.kind;
CREATE OR REPLACE TEMP TABLE advice AS
SELECT c.*, expired / operations AS expired_share, expires AS timeout_expires, expires_low AS timeout_expires_low,
    expires_high AS timeout_expires_high
FROM curves c LEFT JOIN timeouts t
    ON c.topic IS NOT DISTINCT FROM t.topic AND c.kind = t.kind AND c.timeout_ms = t.timeout_ms;
