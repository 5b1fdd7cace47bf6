-- Slots that may contain the deepest moment, and the number pending before each. Made of: steps.
WITH counts AS (
    SELECT key, slot, count_if(step > 0) AS begun, sum(step) AS net FROM {steps} GROUP BY key, slot
), sums AS (
    SELECT *, sum(net) OVER (PARTITION BY key ORDER BY slot) AS after, after - net AS before, before + begun AS most
    FROM counts
), judged AS (
    -- Among the slots with the most waits pending at their end, `highest` is the first.
    SELECT *, max(struct(after, -slot AS earlier)) OVER (PARTITION BY key) AS highest FROM sums
)
-- The first of equal moments is reported, so a tie counts only in the same slot or an earlier one.
SELECT key, slot, before FROM judged
WHERE begun > 0 AND (most > highest.after OR (most = highest.after AND -slot >= highest.earlier))
