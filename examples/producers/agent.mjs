import pg from "pg";

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();

async function enqueue(run, step, tool, scope, payload) {
  await client.query("BEGIN");
  try {
    // … the agent's own state is written here …
    const { rows } = await client.query("SELECT * FROM outbox.enqueue($1, $2, $3, $4, $5)", [run, step, tool, scope, JSON.stringify(payload)]);
    await client.query("COMMIT");
    return rows[0];
  } catch (error) {
    await client.query("ROLLBACK");
    if (error.code === "OB001") throw new Error("this step stands for another payload already", { cause: error });
    if (error.code === "OB002") throw new Error("the run is closed", { cause: error });
    throw error;
  }
}

async function result(intentId, patience = 30_000) {
  const deadline = Date.now() + patience;
  for (let pause = 50; Date.now() < deadline; pause = Math.min(2 * pause, 2_000)) {
    const { rows } = await client.query(
      "SELECT status, provider_ref, response FROM outbox.status WHERE intent_id = $1 AND finished_at IS NOT NULL",
      [intentId],
    );
    if (rows.length > 0) return rows[0];
    await new Promise((wake) => setTimeout(wake, pause));
  }
  return null;
}

const intent = await enqueue("ticket-17", "charge", "stripe/create_charge", "invoice_442", { amount: 1200, currency: "eur", source: "tok_visa" });
console.log(intent.created, intent.status, intent.idempotency_key);
console.log(await result(intent.intent_id));
await client.end();
