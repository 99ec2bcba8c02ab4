-- $1 provider
SELECT EXISTS (
  SELECT FROM outbox.tenant t WHERE max_in_flight > 0
    AND EXISTS (SELECT FROM outbox.queue WHERE provider = $1::text AND tenant = t.tenant_id AND next_attempt_at <= now() AND via IS NULL))
