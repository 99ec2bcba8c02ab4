CREATE FUNCTION shop.place_order(
    payload jsonb, key text,
    agent_run_id text, step_id text, tool_name text, business_scope text
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    wanted integer := payload->>'quantity';
    placed bigint;
BEGIN
    INSERT INTO shop.orders (idempotency_key, article, quantity)
    VALUES (key, payload->>'article', wanted)
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING id INTO placed;

    IF placed IS NULL THEN -- an earlier attempt placed it
        SELECT id INTO placed FROM shop.orders WHERE idempotency_key = key;
        RETURN jsonb_build_object('outcome', 'completed', 'ref', placed, 'replayed', true);
    END IF;

    UPDATE shop.stock SET available = available - wanted
    WHERE article = payload->>'article' AND available >= wanted;
    IF NOT FOUND THEN
        RETURN '{"outcome": "rejected", "response": {"reason": "sold out"}}'; -- the order goes, too
    END IF;
    RETURN jsonb_build_object('outcome', 'completed', 'ref', placed);
END $$;
