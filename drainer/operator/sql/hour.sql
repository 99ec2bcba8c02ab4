-- $1 a provider; '' for all of them together. Its last 60 whole minutes; what no daemon wrote is null.
SELECT s.at, sum(m.completed)::bigint, sum(m.refused)::bigint, sum(m.busy)::bigint, sum(m.in_doubt)::bigint, max(m.oldest)
FROM generate_series(date_trunc('minute'::text, now()) - interval '60 minutes', date_trunc('minute'::text, now()) - interval '1 minute',
                     interval '1 minute') AS s (at)
LEFT JOIN outbox.minute m ON m.at = s.at AND ($1::text = '' OR m.provider = $1::text)
GROUP BY s.at ORDER BY s.at
