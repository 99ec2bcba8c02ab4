DELETE FROM outbox.worker WHERE worker_id = $1::uuid;
