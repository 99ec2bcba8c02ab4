CREATE FUNCTION shop.find_order(
    payload jsonb, key text,
    agent_run_id text, step_id text, tool_name text, business_scope text
) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT coalesce(
        (SELECT jsonb_build_object('outcome', 'completed', 'ref', id)
         FROM shop.orders WHERE idempotency_key = key),
        '{"outcome": "absent"}')
$$;
