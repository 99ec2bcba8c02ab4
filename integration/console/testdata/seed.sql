-- An outbox on a bad afternoon, so that every page of the console has something to show.
INSERT INTO outbox.worker (worker_id, providers, tools, fingerprints, started_at, beat_at) VALUES
  ('6d1f0c1e-6f4b-4f0e-9d9e-1b7a52c0a001', '{payments,mail,tickets,shipping,inventory}', '{payments/charge,mail/send}', '{7c1d09e2ab54,b80f6e13d2c9,90b1f3a6c7d8,e4420d5b8a17,35d8c6f0e921}', now() - interval '3 hours', now() + interval '1 hour'),
  ('6d1f0c1e-6f4b-4f0e-9d9e-1b7a52c0a002', '{payments,mail,tickets,shipping,inventory}', '{payments/charge,mail/send}', '{7c1d09e2ab54,1fa94c7730be,90b1f3a6c7d8,e4420d5b8a17,35d8c6f0e921}', now() - interval '26 minutes', now() + interval '1 hour');
INSERT INTO outbox.tool (name) VALUES ('payments/charge'), ('payments/refund'), ('mail/send'),
  ('tickets/open'), ('tickets/close'), ('tickets/open_with_attachments_and_watchers'), ('shipping/book'), ('inventory/reserve'), ('inventory/release');
INSERT INTO outbox.provider (name, paused, state, reason, shut_at, open_until) VALUES
  ('payments', false, 'closed', NULL, NULL, NULL),
  ('inventory', false, 'closed', NULL, NULL, NULL),
  ('shipping', false, 'closed', NULL, NULL, NULL),
  ('mail', false, 'open', 'overload', now() - interval '4 minutes', now() + interval '1 hour'),
  ('tickets', true, 'closed', NULL, NULL, NULL);
INSERT INTO outbox.operation (done_at, operator, action, provider, reason)
VALUES (now() - interval '12 minutes', 'operator:alice', 'pause', 'tickets', 'the vendor migrates its database until four');

-- 1 to 5: a run whose last step failed. 6 to 8 undo what it did.
INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
SELECT 'order-assistant/2026-11-25/7731', step, tool, 'order_90417', payload::jsonb, now() - interval '5 minutes' + at * interval '1 s'
FROM (VALUES
  (1, 'reserve-stock', 'inventory/reserve', '{"sku": "KB-104", "count": 1}', 0.0),
  (2, 'charge-card', 'payments/charge', '{"amount": 12900, "currency": "eur", "card": "4111-secret"}', 1.0),
  (3, 'confirm-by-mail', 'mail/send', '{"to": "ada@example.com"}', 2.0),
  (4, 'open-ticket', 'tickets/open', '{"title": "Order 90417"}', 2.5),
  (5, 'book-courier', 'shipping/book', '{"weight": 1200.50}', 8.0)) AS s (n, step, tool, payload, at) ORDER BY n;
INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at, compensates)
SELECT 'order-assistant/2026-11-25/7731', 'compensate:' || step, tool, 'order_90417', '{}', now() - interval '5 minutes' + at * interval '1 s', undoes
FROM (VALUES
  (4, 'open-ticket', 'tickets/close', 14.2), (2, 'charge-card', 'payments/refund', 15.6), (1, 'reserve-stock', 'inventory/release', 17.9)) AS s (undoes, step, tool, at)
ORDER BY at;
INSERT INTO outbox.saga (agent_run_id, cause, state, begun_at, ended_at)
VALUES ('order-assistant/2026-11-25/7731', 5, 'compensated', now() - interval '5 minutes' + interval '14 s', now() - interval '5 minutes' + interval '19 s');

-- 9: whether the customer was charged is not known. 10: refused.
INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at) VALUES
  ('billing-agent-3f0c2b1e', 'charge-card', 'payments/charge', 'invoice_442', '{"amount": 4200}', now() - interval '31 minutes'),
  ('billing-agent-3f0c2b1e', 'send-receipt', 'mail/send', 'invoice_442', '{"to": "sam@example.com"}', now() - interval '30 minutes');

-- 11 to 70: long names, as agents make them. 71 and later wait for the mail server.
INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
SELECT 'nightly-reconciliation-of-supplier-invoices/europe-west/' || to_char(n, 'FM000') || '-9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d',
       'step-' || n || '-notify-the-accounts-payable-department', 'tickets/open_with_attachments_and_watchers',
       'supplier/ACME-Industrial-Fasteners-and-Adhesives-GmbH/invoice/' || n, '{}', now() - interval '29 minutes' + n * interval '1 s'
FROM generate_series(11, 70) n;
INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
SELECT 'newsletter-' || n / 10, 'send-' || n, 'mail/send', 'customer_' || n, '{}', now() - interval '6 minutes' + n * interval '0.2 s'
FROM generate_series(71, 270) n;
UPDATE outbox.queue SET next_attempt_at = now() - interval '5 minutes' WHERE provider = 'mail';

DELETE FROM outbox.queue WHERE intent_id <= 30;
INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, next_attempt_at, http_status, error, provider_ref, response, lookup)
SELECT intent, attempt, CASE WHEN outcome = 'undone' THEN 'saga' ELSE '6d1f0c1e-6f4b-4f0e-9d9e-1b7a52c0a001' END,
       CASE WHEN outcome <> 'undone' THEN now() - interval '5 minutes' + began * interval '1 s' END,
       now() - interval '5 minutes' + ended * interval '1 s', outcome, status,
       CASE WHEN status = 'pending' THEN now() - interval '5 minutes' + again * interval '1 s' END,
       http, error, ref, CASE WHEN http IS NOT NULL THEN '{"number": "4111-secret", "total": 1200.50}'::jsonb END, lookup
FROM (VALUES
  (1, 1, 0.2, 1.4, 'ambiguous', 'pending', 3.0, NULL, 'timeout', NULL, false),
  (1, 2, 3.0, 3.3, 'completed', 'completed', NULL, 200, NULL, 'res_5521', true),
  (2, 1, 1.1, 2.9, 'throttled', 'pending', 6.0, 503, 'http_503', NULL, false),
  (2, 2, 6.0, 7.1, 'completed', 'completed', NULL, 201, NULL, 'ch_3PqX8v', false),
  (3, 1, 2.2, 2.7, 'completed', 'completed', NULL, 202, NULL, 'msg_01', false),
  (4, 1, 2.6, 4.1, 'completed', 'completed', NULL, 201, NULL, 'T-1881', false),
  (5, 1, 8.2, 9.4, 'throttled', 'pending', 13.0, 429, 'http_429', NULL, false),
  (5, 2, 13.0, 14.0, 'rejected', 'failed', NULL, 422, 'http_422', NULL, false),
  (6, 1, 14.4, 15.5, 'completed', 'completed', NULL, 200, NULL, 'T-1881', false),
  (7, 1, 15.7, 17.8, 'completed', 'completed', NULL, 201, NULL, 're_77', false),
  (8, 1, 18.0, 18.7, 'completed', 'completed', NULL, 200, NULL, 'res_5521', false),
  (4, 2, NULL, 15.5, 'undone', 'compensated', NULL, NULL, NULL, NULL, false),
  (2, 3, NULL, 17.8, 'undone', 'compensated', NULL, NULL, NULL, NULL, false),
  (1, 3, NULL, 18.7, 'undone', 'compensated', NULL, NULL, NULL, NULL, false))
  AS a (intent, attempt, began, ended, outcome, status, again, http, error, ref, lookup);
INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, http_status, error)
VALUES (9, 1, '6d1f0c1e-6f4b-4f0e-9d9e-1b7a52c0a002', now() - interval '30 minutes', now() - interval '29 minutes 30 s', 'ambiguous', 'unknown', NULL, 'timeout'),
       (10, 1, '6d1f0c1e-6f4b-4f0e-9d9e-1b7a52c0a002', now() - interval '29 minutes', now() - interval '28 minutes 59 s', 'rejected', 'failed', 422, 'http_422');
INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, finished_at, outcome, status, http_status, error, provider_ref)
SELECT n, 1, '6d1f0c1e-6f4b-4f0e-9d9e-1b7a52c0a002', now() - interval '28 minutes', now() - interval '27 minutes',
       CASE WHEN n % 4 = 0 THEN 'rejected' ELSE 'completed' END, CASE WHEN n % 4 = 0 THEN 'failed' ELSE 'completed' END,
       CASE WHEN n % 4 = 0 THEN 403 ELSE 201 END,
       CASE WHEN n % 4 = 0 THEN 'attachment_type_not_permitted_by_administrator_of_this_workspace' END, 'T-' || n
FROM generate_series(11, 30) n;
INSERT INTO outbox.incident (kind, intent_id, agent_run_id, detail, opened_at, acknowledged_at, acknowledged_by, reason)
VALUES ('outcome_unknown', 9, 'billing-agent-3f0c2b1e', 'timeout', now() - interval '29 minutes', NULL, NULL, NULL),
       ('forbidden', 12, 'nightly-reconciliation-of-supplier-invoices/europe-west/012-9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d',
        'tickets/open_with_attachments_and_watchers', now() - interval '27 minutes', now() - interval '20 minutes', 'operator:bob', 'asked the vendor');

-- The last hour: mail fails since four minutes ago, and what waits for tickets grows old since the pause.
INSERT INTO outbox.minute (at, provider, completed, busy, refused, in_doubt, took, oldest)
SELECT date_trunc('minute', now()) - n * interval '1 minute', provider,
       CASE WHEN provider = 'mail' AND n < 5 OR provider = 'tickets' AND n < 12 THEN 0 ELSE base + (n * 7) % 11 END,
       CASE WHEN provider = 'mail' AND n < 8 THEN 21 ELSE n % 3 END, CASE WHEN provider = 'tickets' THEN n % 2 ELSE 0 END, CASE WHEN n = 31 THEN 2 ELSE 0 END,
       ARRAY[0, 0, 0, 0, 1, 6, base, base / 2, 2, 1], CASE WHEN provider = 'tickets' AND n < 28 THEN (28 - n) * 60 WHEN provider = 'mail' AND n < 5 THEN (5 - n) * 60 ELSE 1 END
FROM generate_series(1, 58) n, (VALUES ('payments', 12), ('mail', 25), ('tickets', 6)) AS p (provider, base);
INSERT INTO outbox.breaker_change (name, state, reason, changed_at) VALUES
  ('mail', 'open', 'overload', now() - interval '49 minutes'),
  ('mail', 'half_open', NULL, now() - interval '48 minutes'), ('mail', 'closed', NULL, now() - interval '48 minutes'),
  ('mail', 'open', 'overload', now() - interval '4 minutes');

-- Tenants: one near its limits, one without any, one with a long name.
INSERT INTO outbox.tenant (name, role, namespace, weight, max_due, max_bytes, max_rate, max_in_flight) VALUES
  ('retail-europe', 'retail_europe', 'prod/retail', 3, 5000, 50000000, 200, NULL),
  ('finance', 'finance', NULL, 1, NULL, NULL, NULL, 20),
  ('nightly-reconciliation-of-supplier-invoices/europe-west', 'reconciliation', NULL, 1, NULL, 2000000, NULL, NULL);
UPDATE outbox.intent SET tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = 'retail-europe') WHERE provider = 'mail';
UPDATE outbox.queue SET tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = 'retail-europe'), bytes = 2300 WHERE provider = 'mail';
