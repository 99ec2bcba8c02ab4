-- $1 worker. The other workers get its share of every limit. It keeps its claims.
UPDATE outbox.worker SET providers = '{}', tools = '{}', fingerprints = '{}', configuration = '' WHERE worker_id = $1::uuid;
