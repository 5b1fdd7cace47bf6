-- How operations end without a timeout, and what timeouts would do. Made of: curve, timeouts_used, expired_under,
-- topic_windows.

CREATE OR REPLACE TEMP TABLE counts AS
WITH large AS (
    SELECT topic, kind FROM topic_windows GROUP BY topic, kind
    QUALIFY row_number() OVER (PARTITION BY kind ORDER BY sum(ended + unfinished) DESC, topic) <= 20
)
SELECT * FROM curve SEMI JOIN large USING (topic, kind)
UNION ALL BY NAME
SELECT NULL AS topic, kind, waited_ms, sum(satisfied)::BIGINT AS satisfied, sum(done)::BIGINT AS done, sum(failed)::BIGINT AS failed,
    sum(cancelled)::BIGINT AS cancelled, sum(expired)::BIGINT AS expired, sum(unreached)::BIGINT AS unreached,
    sum(entered)::BIGINT AS entered, sum(censored)::BIGINT AS censored
FROM curve GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE hazards AS
WITH risks AS (
    SELECT *, satisfied + failed + cancelled AS ends, (sum(ends + censored) OVER later - sum(entered) OVER of_curve
            + sum(entered) OVER along)::BIGINT AS at_risk,
        (sum(censored) OVER along)::BIGINT AS left_until
    FROM counts
    WINDOW of_curve AS (PARTITION BY topic, kind), along AS (PARTITION BY topic, kind ORDER BY waited_ms),
        later AS (PARTITION BY topic, kind ORDER BY waited_ms DESC)
), sums AS (
    SELECT *, bool_or(at_risk <= ends AND ends > 0) OVER along AS is_over,
        sum(if(ends > 0, ln(greatest(at_risk - ends, 1) / greatest(at_risk, 1)), 0)) OVER along AS logarithm,
        sum(ends / (greatest(at_risk, 1)::DOUBLE * greatest(at_risk - ends, 1))) OVER along AS variance,
        sum(ends / (greatest(at_risk, 1)::DOUBLE * greatest(at_risk, 1))) OVER along AS passed,
        max(waited_ms) FILTER (at_risk >= 10) OVER of_curve AS known_until_ms
    FROM risks WINDOW of_curve AS (PARTITION BY topic, kind), along AS (PARTITION BY topic, kind ORDER BY waited_ms)
)
SELECT *, coalesce(waited_ms <= known_until_ms, FALSE) AS is_known, if(is_over, 0, exp(logarithm)) AS waiting
FROM sums;
-- The curve if those of which no later event is known could only fail or be cancelled: the upper bound is from there.
CREATE OR REPLACE TEMP TABLE upper AS
WITH shares AS (
    SELECT *, greatest(at_risk - failed - cancelled, 1) / greatest(at_risk, 1) AS others FROM hazards
), stayed AS (
    SELECT *, exp(sum(ln(others)) OVER along) AS staying FROM shares
    WINDOW along AS (PARTITION BY topic, kind ORDER BY waited_ms)
), remaining AS (
    SELECT *, staying * sum(unreached / staying) OVER along AS unreached_left FROM stayed
    WINDOW along AS (PARTITION BY topic, kind ORDER BY waited_ms)
), before AS (
    SELECT *, coalesce(lag(unreached_left) OVER (PARTITION BY topic, kind ORDER BY waited_ms), 0) AS came FROM remaining
)
SELECT *, sum(if(ends > 0, ln((greatest(at_risk - ends, 1) + came * others) / (greatest(at_risk, 1) + came)), 0))
        OVER along AS most,
    sum(ends / ((greatest(at_risk - ends, 1) + came * others) * (greatest(at_risk, 1) + came))) OVER along AS most_variance
FROM before WINDOW along AS (PARTITION BY topic, kind ORDER BY waited_ms);

-- Operations that end in one call: the variance of each curve, over that of operations that end one by one.
CREATE OR REPLACE TEMP TABLE influences AS
SELECT h.topic, h.kind, o.run_id, o.call_number, o.waited_ms,
    passed - if(o.outcome IN ('satisfied', 'reached', 'failed', 'cancelled'), 1 / greatest(at_risk, 1), 0) AS influence
FROM ended o JOIN hazards h
    ON (h.topic IS NULL OR h.topic = o.topic) AND h.kind = o.kind AND h.waited_ms = o.waited_ms;
CREATE OR REPLACE TEMP TABLE widenings AS
WITH places AS (
    SELECT topic, kind, ladder.at_ms, arg_max(passed, waited_ms) AS passed, arg_max(variance, waited_ms) AS alone
    FROM hazards, (SELECT step * 10 ** power AS at_ms FROM (SELECT unnest([1, 2, 5]) AS step),
        (SELECT unnest(range(7)) AS power)) ladder
    WHERE waited_ms <= ladder.at_ms GROUP BY ALL
), calls AS (
    SELECT p.topic, p.kind, p.at_ms, alone, sum(if(waited_ms <= p.at_ms, influence, passed)) AS influence
    FROM places p JOIN influences i ON p.topic IS NOT DISTINCT FROM i.topic AND p.kind = i.kind
    GROUP BY p.topic, p.kind, p.at_ms, alone, run_id, call_number
), factors AS (
    SELECT topic, kind, at_ms, if(alone > 0, greatest(sum(influence ** 2) / alone, 1), 1) AS factor
    FROM calls GROUP BY topic, kind, at_ms, alone
)
SELECT topic, kind, at_ms, factor, lead(at_ms) OVER along AS next_ms, lead(factor) OVER along AS next_factor,
    row_number() OVER along = 1 AS is_first
FROM factors WINDOW along AS (PARTITION BY topic, kind ORDER BY at_ms);
CREATE OR REPLACE TEMP TABLE estimate AS
WITH widths AS (
    SELECT h.*, if(logarithm < 0 AND NOT is_over, coalesce(
            factor + coalesce((next_factor - factor) * (ln(waited_ms + 1) - ln(at_ms + 1)) / (ln(next_ms + 1)
                - ln(at_ms + 1)), 0), 1), 0) AS wider,
        1.6448536269514722 + 0.3151103575885818 * exp(-2 * (most - logarithm) / greatest(sqrt(variance * wider), 1e-9))
            AS z
    FROM upper h LEFT JOIN widenings w ON h.topic IS NOT DISTINCT FROM w.topic AND h.kind = w.kind
        AND waited_ms >= at_ms AND (waited_ms < next_ms OR next_ms IS NULL)
)
SELECT topic, kind, waited_ms, satisfied + failed + cancelled + censored AS operations, done, expired,
    at_risk, left_until, is_known, waiting,
    if(is_over, if(came > 0, 0, NULL), exp(logarithm * exp(z * sqrt(variance * wider) / greatest(-logarithm, 1e-9))))
        AS waiting_low,
    if(is_over AND came = 0, NULL, exp(most * exp(-z * sqrt(most_variance * wider) / greatest(-most, 1e-9))))
        AS waiting_high,
    sum(before * satisfied / greatest(at_risk, 1)) OVER along AS satisfied,
    sum(before * failed / greatest(at_risk, 1)) OVER along AS failed,
    sum(before * cancelled / greatest(at_risk, 1)) OVER along AS cancelled
FROM (SELECT *, coalesce(lag(waiting) OVER (PARTITION BY topic, kind ORDER BY waited_ms), 1) AS before FROM widths)
WINDOW along AS (PARTITION BY topic, kind ORDER BY waited_ms);
CREATE OR REPLACE TEMP TABLE survival AS
WITH cells AS (
    SELECT *, floor(waiting * 200) AS height, floor(-log10(greatest(waiting, 1e-6)) * 25) AS depth,
        [height, depth, floor(log2(waited_ms + 1) * 10)] AS cell
    FROM estimate
)
SELECT topic, kind, waited_ms, waiting, waiting_low, waiting_high, satisfied, failed, cancelled, at_risk FROM cells
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
SELECT e.topic, e.kind, sum(e.operations)::BIGINT AS operations, sum(done)::BIGINT AS satisfied,
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
    coalesce(any_value(u.timeouts), 0) AS timeouts, any_value(u.operations) AS with_timeout
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
        arg_max({'high': waiting_high}, waited_ms) FILTER (is_known) AS known, arg_max(satisfied, waited_ms) AS satisfied,
        arg_max(failed, waited_ms) AS failed, arg_max(cancelled, waited_ms) AS cancelled,
        coalesce(max(left_until) FILTER (waited_ms < d.timeout_ms), 0) AS left_until
    FROM candidates d LEFT JOIN estimate e
        ON d.topic IS NOT DISTINCT FROM e.topic AND d.kind = e.kind AND waited_ms <= d.timeout_ms
    GROUP BY ALL
)
SELECT c.topic, c.kind, r.timeout_ms, coalesce(r.timeout_ms = c.timeout_ms, FALSE) AS in_use,
    CASE WHEN known IS NULL THEN if(waiting IS NULL AND seen, 1, NULL) WHEN waiting = 0 THEN 0
        WHEN r.timeout_ms <= seen_until_ms THEN waiting END AS expires,
    CASE WHEN known IS NULL THEN if(waiting IS NULL AND seen, 1, 0) WHEN waiting = 0 THEN 0
        WHEN r.timeout_ms <= seen_until_ms THEN low ELSE 0 END AS expires_low,
    if(known IS NULL, 1, coalesce(known.high, least(1, 3 / operations))) AS expires_high,
    if(expires IS NULL, NULL, coalesce(r.satisfied, 0)) AS satisfied,
    if(expires IS NULL, NULL, coalesce(failed, 0)) AS failed,
    if(expires IS NULL, NULL, coalesce(cancelled, 0)) AS cancelled, left_until / operations AS estimated
FROM read_off r JOIN (SELECT *, seen_until_ms > 0 OR operations >= 10 AS seen FROM curves) c
    ON c.topic IS NOT DISTINCT FROM r.topic AND c.kind = r.kind;
CREATE OR REPLACE TEMP TABLE near_misses AS
WITH large AS (SELECT DISTINCT topic, kind FROM counts WHERE topic IS NOT NULL), twice AS (
    SELECT * FROM missed SEMI JOIN large USING (topic, kind) UNION ALL BY NAME SELECT * REPLACE (NULL AS topic) FROM missed
)
SELECT topic, kind, count(*) AS expired, count(*) FILTER (fate = 'reached') AS reached, reached / expired AS reached_share,
    quantile_disc(waited_ms - timeout_ms, 0.5) FILTER (fate = 'reached') AS late_p50_ms,
    quantile_disc(waited_ms - timeout_ms, 0.9) FILTER (fate = 'reached') AS late_p90_ms,
    quantile_disc(waited_ms - timeout_ms, 0.99) FILTER (fate = 'reached') AS late_p99_ms,
    max(waited_ms - timeout_ms) FILTER (fate = 'reached') AS late_max_ms
FROM twice GROUP BY topic, kind;
CREATE OR REPLACE TEMP TABLE advice AS
WITH observed AS (
    SELECT topic, kind, timeout_ms, expired FROM expired_under
    UNION ALL SELECT NULL, kind, timeout_ms, sum(expired) FROM expired_under GROUP BY ALL
)
SELECT c.*, c.expired / operations AS expired_share, coalesce(o.expired, 0) / with_timeout AS timeout_observed,
    expires AS timeout_expires, expires_low AS timeout_expires_low, expires_high AS timeout_expires_high
FROM curves c LEFT JOIN timeouts t
    ON c.topic IS NOT DISTINCT FROM t.topic AND c.kind = t.kind AND c.timeout_ms = t.timeout_ms
LEFT JOIN observed o ON c.topic IS NOT DISTINCT FROM o.topic AND c.kind = o.kind AND c.timeout_ms = o.timeout_ms;
