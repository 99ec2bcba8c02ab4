SELECT kind, count(*) FROM outbox.incident WHERE resolved_at IS NULL AND acknowledged_at IS NULL GROUP BY kind;
