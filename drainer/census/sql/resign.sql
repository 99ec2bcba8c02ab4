UPDATE outbox.census SET leads_until = '-infinity' WHERE leader = $1::uuid;
