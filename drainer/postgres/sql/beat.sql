UPDATE outbox.worker SET beat_at = now() WHERE worker_id = $1::uuid;
