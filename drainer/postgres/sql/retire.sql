-- $1 worker. Its share of every limit goes to the others; its claims stay its own.
UPDATE outbox.worker SET providers = '{}', tools = '{}', fingerprints = '{}', configuration = '' WHERE worker_id = $1::uuid;
