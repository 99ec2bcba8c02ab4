-- $1 provider; '': all providers together. Returns the last 60 whole minutes, with nulls for a minute that no daemon
-- wrote.
SELECT s.at, sum(m.completed)::bigint, sum(m.refused)::bigint, sum(m.busy)::bigint, sum(m.in_doubt)::bigint, max(m.oldest)
FROM generate_series(date_trunc('minute'::text, now()) - interval '60 minutes', date_trunc('minute'::text, now()) - interval '1 minute',
                     interval '1 minute') AS s (at)
LEFT JOIN outbox.minute m ON m.at = s.at AND ($1::text = '' OR m.provider = $1::text)
GROUP BY s.at ORDER BY s.at
