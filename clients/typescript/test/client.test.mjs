// Against the installed package and a real Postgres, through node-postgres. The other
// clients cannot be had everywhere: their adapters are tested with stand-ins, each of which passes the statement on to
// node-postgres, and with the library itself where NODE_PATH has it.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { test } from "node:test";
import * as esm from "@agent-drainer/client";

const require = createRequire(import.meta.url);
const cjs = require("@agent-drainer/client");
const { enqueue, fromDrizzle, fromKysely, fromPg, fromPostgresJs, fromPrisma, Results } = esm;
const vectors = JSON.parse(readFileSync(process.env.DRAINER_VECTORS, "utf8"));
const intent = (run, changed = {}) => ({ run, step: "charge", tool: "parked/charge", scope: "invoice_442", payload: { amount: 1200 }, ...changed });

function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  if ("$int" in value) return Number.isSafeInteger(Number(value.$int)) ? Number(value.$int) : BigInt(value.$int);
  if ("$float" in value) return Number(value.$float);
  if ("$repeat" in value) return value.$repeat[0].repeat(value.$repeat[1]);
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, plain(member)]));
}

test("both kinds of module have the same names", () => assert.deepEqual(Object.keys(esm).sort(), Object.keys(cjs).sort()));

test("keys, errors and sentences are those of the vectors", () => {
  for (const v of vectors.keys) assert.equal(esm.idempotencyKey(v.run, v.step, v.tool, v.scope, v), v.key);
  assert.deepEqual({ ...esm.sentences }, vectors.sentences);
  for (const v of vectors.errors) {
    const error = new esm.refusals[v.sqlstate]("said");
    assert.deepEqual([error.name, error.forModel], [v.name, vectors.sentences[v.sentence]]);
  }
  for (const v of vectors.outcomes.filter((v) => v.status !== "completed")) {
    const error = new esm.outcomes[v.status]("1", v.status, null, null, null);
    assert.deepEqual([error.name, error.forModel], [v.name, vectors.sentences[v.status]]);
  }
});

test("an invalid intent is refused without a connection", async () => {
  const refused = async (changed, says) =>
    assert.rejects(enqueue(undefined, intent("r", changed)), (error) => error instanceof esm.Invalid && error.message.includes(says) || assert.fail(error));
  for (const v of vectors.invalid) await refused(plain(v.intent), v.says);
  for (const text of vectors.double_encoded) await refused({ payload: text }, "holds JSON");
  const endless = [];
  endless.push(endless);
  for (const [payload, says] of [
    [NaN, "NaN"], [{ n: 2 ** 53 }, "payload.n is an integer beyond 2^53"], [{ at: new Date() }, "payload.at is Date"],
    ["\ud800", "half a surrogate pair"], [[1, , 2], "payload[1] is undefined"], [Object.create(Object.create({ a: 1 })), "Object"], [endless, "nested"], [[undefined], "payload[0] is undefined"], [new Map(), "Map"],
  ]) await refused({ payload }, says);
});

test("payloads are written as the vectors say", () => {
  for (const v of vectors.payloads.filter((v) => !v.value?.$decimal)) // JavaScript has no decimals
    assert.ok(v.sent.includes(esm.encode("payload", plain(v.value))), `${v.name}: ${esm.encode("payload", plain(v.value))}`);
});

test("which errors a wait outlives", () => {
  for (const [code, outlived] of Object.entries(vectors.passes)) {
    for (const error of [{ code }, { code: "P2010", meta: { code } }, { cause: { code } }]) assert.equal(esm.passes(error), outlived, code);
  }
  for (const code of ["EPIPE", "ECONNREFUSED", "P1001", "CONNECTION_CLOSED", undefined]) assert.ok(esm.passes({ code }), code);
});

test("an integer beyond 2^53 in a response is a bigint", () => {
  assert.deepEqual(
    esm.parse('{"id": 9007199254740993, "n": [-90071992547409931, 1000000000000000, 0.12345678901234567890, 12], "text": "\\"9007199254740993"}'),
    { id: 2n ** 53n + 1n, n: [-90071992547409931n, 1000000000000000, 0.12345678901234568, 12], text: '"9007199254740993' });
});

const answers = (rows) => new Results({ execute: async (text) => text.includes("outbox.await") ? rows : [{ open: false }] });
test("a wait takes no id that is none, so that it ends no other wait", async () => {
  for (const wrong of [17, "five", "1,2", "", undefined, null, {}, "9".repeat(19)]) await assert.rejects(answers([]).wait(wrong), TypeError);
});

test("a wait may be endless", async () => {
  const rows = [];
  const wait = answers(rows).wait("1", { timeout: Infinity });
  assert.equal(await Promise.race([wait, new Promise((wake) => setTimeout(wake, 50, "waits"))]), "waits");
  rows.push({ intent_id: "1", status: "completed" });
  assert.equal((await wait).status, "completed");
});

test("a question without an answer is asked again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let asked = 0;
  const results = new Results({
    execute: async (text) => ++asked === 1 ? new Promise(() => {}) : [text.includes("outbox.await") ? { intent_id: "1", status: "completed" } : { open: false }],
  });
  let settled;
  const wait = results.wait("1", { timeout: 60_000 }).then((answer) => { settled = answer; });
  for (let n = 0; n < 1000 && !settled; n++) {
    t.mock.timers.tick(50);
    await new Promise(setImmediate);
  }
  await wait;
  assert.equal(settled.status, "completed");
});

test("questions without an answer take three clients of the pool, and one more each minute until one has its answer", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let now = 0;
  t.mock.method(performance, "now", () => now);
  const asked = [];
  const wait = new Results({
    execute: (text) => {
      asked.push(now / 1000);
      return asked.length < 5 ? new Promise(() => {}) : [text.includes("outbox.await") ? { intent_id: "1", status: "completed" } : { open: false }];
    },
  }).wait("1", { timeout: 200_000 });
  for (; now < 200_000; now += 50) {
    t.mock.timers.tick(50);
    await new Promise(setImmediate);
  }
  assert.equal((await wait).status, "completed");
  // A question is given up after 10 s, and the next is asked soon: a look that got stuck adds no pause of its length.
  assert.deepEqual(asked.map(Math.floor), [0, 10, 20, 80, 140, 140]);
});

test("a database that hangs takes five clients of the pool, and the wait goes on when it is back", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let now = 0, back = false;
  t.mock.method(performance, "now", () => now);
  const answer = (text) => [text.includes("outbox.await") ? { intent_id: "1", status: "completed" } : { open: false }];
  const asked = [];
  let settled;
  const wait = new Results({
    execute: (text) => back ? answer(text) : new Promise((resolve) => { asked.push(() => resolve(answer(text))); }),
  }).wait("1", { timeout: Infinity }).then((done) => { settled = done; });
  const pass = async (until) => {
    for (; now < until && !settled; now += 250) {
      t.mock.timers.tick(250);
      await new Promise(setImmediate);
    }
  };
  await pass(3_600_000);
  assert.equal(asked.length, 5);
  back = true;
  asked[0]();
  await pass(3_660_000);
  await wait;
  assert.equal(settled.status, "completed");
});

test("columns may have other names", async () => {
  const camel = { intentId: "7", created: true, status: "pending", idempotencyKey: "idem_v1_x" };
  const recorded = await enqueue({ execute: async () => [camel] }, intent("r"));
  assert.deepEqual([recorded.id, recorded.created, recorded.key], ["7", true, "idem_v1_x"]);
  const settled = { intentId: "7", status: "completed", providerRef: "ref-1", lastError: null, response: '{"n": 1}' };
  const results = new Results({ execute: async (text) => [text.includes("outbox.await") ? settled : { Open: false }] });
  const done = await results.wait("7", { timeout: 60_000 });
  assert.deepEqual([done.status, done.providerRef, done.response], ["completed", "ref-1", { n: 1 }]);
});

test("a wait inside of a transaction ends no other wait", async () => {
  let open = false, done = false;
  const results = new Results({ execute: async (text) => text.includes("outbox.await") ? (done ? [{ intent_id: "1", status: "completed" }] : []) : [{ open }] });
  const outside = results.wait("1", { timeout: 60_000 });
  await new Promise((wake) => setTimeout(wake, 20)); // it has been asked for
  open = true;
  await assert.rejects(results.wait("2", { timeout: 60_000 }), esm.NotCommitted);
  done = true;
  assert.equal((await outside).status, "completed");
});

test("a listener that is lost twice takes no later one along", async () => {
  const lost = [], stopped = [];
  let settled = false;
  const results = new Results({
    execute: async (text) => text.includes("outbox.await") ? (settled ? [{ intent_id: "1", status: "completed" }] : []) : [{ open: false }],
    listen: async (heard, loses) => { const n = lost.push(loses); return () => stopped.push(n); },
  });
  const wait = results.wait("1", { timeout: 60_000 });
  const listeners = async (n) => { while (lost.length < n) await new Promise((wake) => setTimeout(wake, 5)); };
  await listeners(1);
  lost[0]();
  await listeners(2);
  lost[0]();
  await new Promise((wake) => setTimeout(wake, 600)); // two looks at least
  settled = true;
  await wait;
  await new Promise((wake) => setTimeout(wake, 50));
  assert.deepEqual([lost.length, stopped], [2, [2]]);
});

test("beginning to listen takes no second client of the pool", async () => {
  let asked = 0, most = 0, settled = false;
  const execute = async (text) => {
    most = Math.max(most, ++asked);
    await new Promise((wake) => setTimeout(wake, 20));
    asked--;
    return text.includes("outbox.await") ? (settled ? [{ intent_id: "1", status: "completed" }] : []) : [{ open: false }];
  };
  let listens;
  const listening = new Promise((tell) => { listens = tell; });
  const results = new Results({ execute, listen: async (heard) => { await execute(""); heard(); listens(); return () => {}; } });
  const waits = [results.wait("1", { timeout: 60_000 }), results.wait("1", { timeout: 60_000 })]; // the second is news at once
  await listening;
  settled = true;
  await Promise.all(waits);
  assert.equal(most, 1);
});

test("a database whose listen throws is asked at intervals", async () => {
  let looks = 0;
  const results = new Results({
    execute: async (text) => text.includes("outbox.await") ? (++looks > 2 ? [{ intent_id: "1", status: "completed" }] : []) : [{ open: false }],
    listen: () => { throw new Error("this client cannot listen"); },
  });
  for (const timeout of [60_000, 60_000]) assert.equal((await results.wait("1", { timeout })).status, "completed");
});

test("a listener that fails is tried less and less often, over several waits, and at once after one that worked", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let now = 0, settled = false, listens = true;
  t.mock.method(performance, "now", () => now);
  t.mock.method(Date, "now", () => -now); // the clock of the machine may be set
  const tries = [];
  const results = new Results({
    execute: async (text) => text.includes("outbox.await") ? (settled ? [{ intent_id: "1", status: "completed" }] : []) : [{ open: false }],
    listen: async () => {
      tries.push(now);
      if (!listens) throw new Error("no connection");
      return () => {};
    },
  });
  const pass = async (milliseconds) => {
    for (const until = now + milliseconds; now < until; now += 5) {
      t.mock.timers.tick(5);
      await new Promise(setImmediate);
    }
  };
  const waiting = async (milliseconds) => {
    settled = false;
    const wait = results.wait("1", { timeout: Infinity });
    await pass(milliseconds);
    settled = true;
    await pass(1000);
    await wait;
    return tries.splice(0);
  };
  listens = false;
  const first = await waiting(20_000), second = await waiting(100_000);
  const gaps = [...first, ...second].map((at, n, all) => at - (all[n - 1] ?? at)).slice(1);
  assert.ok(first.length <= 8 && gaps.every((gap, n) => gap >= Math.min(250 * 2 ** n, 30_000)), `gaps of ${gaps}`);
  assert.ok(second.length >= 2 && gaps.every((gap) => gap <= 32_000), `gaps of ${gaps}`);
  listens = true;
  await waiting(40_000);
  listens = false;
  const began = now;
  assert.ok((await waiting(1000))[0] - began < 300);
});

test("a connection that cannot listen is closed", async () => {
  let made = 0, ended = 0;
  class Client {
    on() {}
    async connect() { made++; }
    async query() { throw Object.assign(new Error("cannot execute LISTEN during recovery"), { code: "25006" }); }
    async end() { ended++; }
  }
  const wait = new Results(fromPg({ Client, options: {}, query: async () => ({ rows: [] }) })).wait("1", { timeout: 500 });
  assert.equal((await wait).status, "pending");
  assert.ok(made > 0 && ended === made, `${made} were made, ${ended} closed`);
});

test("postgres.js listens where the session is its own, and not behind a pooler", async () => {
  for (const [pooled, of] of [[false, 7], [true, 8]]) {
    const channels = [];
    const sql = {
      unsafe: async () => Object.assign([{ pid: 7 }], { state: { pid: of } }),
      listen: async (channel) => { channels.push(channel); return { unlisten: async () => { throw new Error("CONNECTION_ENDED"); } }; },
    };
    (await fromPostgresJs(sql).listen(() => {}))(); // a rejection that nothing handles would fail this test
    await new Promise(setImmediate);
    assert.deepEqual(channels, pooled ? [] : ["outbox_settled"]);
  }
});

let pg;
try {
  pg = require("pg");
} catch {
  console.log("no node-postgres here; install Debian's node-pg, or say NODE_PATH");
}
const options = { skip: pg ? false : "no node-postgres here", timeout: 120_000 };
const connected = async (url, use) => {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.end();
  }
};
const admin = (text, values) => connected(process.env.DRAINER_TEST_ADMIN, async (client) => (await client.query(text, values)).rows);
const agent = (use) => connected(process.env.DRAINER_TEST_AGENT, use);
const record = () => agent(async (client) => {
  await client.query("BEGIN");
  const recorded = await enqueue(fromPg(client), intent(randomUUID()));
  await client.query("COMMIT");
  return recorded;
});

const begun = (adapt) => async (client, use) => {
  await client.query("BEGIN");
  try {
    const used = await use(adapt(client));
    await client.query("COMMIT");
    return used;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
};
// Each adapter in a transaction of a client that has its library's interface and speaks through node-postgres, and
// outside of one.
const adapters = {
  fromPg: [begun(fromPg), fromPg],
  "fromPostgresJs, stand-in": [
    begun((client) => fromPostgresJs({ unsafe: async (text, values) => (await client.query(text, values)).rows, savepoint() {} })),
    () => fromPostgresJs({ unsafe() {}, begin() {} }),
  ],
  "fromPrisma, stand-in": [
    begun((client) => fromPrisma({
      $queryRawUnsafe: (text, ...values) => client.query(text, values).then((result) => result.rows, (error) => {
        throw Object.assign(new Error("Raw query failed."), { code: "P2010", meta: { code: error.code, message: error.message, detail: error.detail, hint: error.hint } });
      }),
    })),
    () => fromPrisma({ $queryRawUnsafe() {}, $transaction() {} }),
  ],
  "fromDrizzle, stand-in": [
    begun((client) => fromDrizzle({
      execute: ({ text, values }) => client.query(text, values).catch((cause) => { throw new Error("Failed query", { cause }); }),
      rollback() {},
    }, (strings, ...values) => ({ text: strings.raw.reduce((text, piece, at) => `${text}$${at}${piece}`), values }))),
    () => fromDrizzle({ execute() {} }, () => {}),
  ],
  "fromKysely, stand-in": [
    begun((client) => fromKysely({ executeQuery: ({ sql, parameters, query }) => (assert.equal(query.kind, "RawNode"), client.query(sql, parameters)), isTransaction: true })),
    () => fromKysely({ executeQuery() {}, isTransaction: false }),
  ],
};
const live = (name, adapter, ...modules) => {
  try {
    adapters[`live ${name}`] = adapter(...modules.map(require));
  } catch (error) {
    adapters[`live ${name}`] = String(error.message).split("\n")[0];
  }
};
live("postgres.js", (postgres) => [
  async (_, use) => {
    const sql = postgres(process.env.DRAINER_TEST_AGENT);
    return sql.begin((begun) => use(fromPostgresJs(begun))).finally(() => sql.end());
  },
  () => fromPostgresJs(postgres(process.env.DRAINER_TEST_AGENT)),
], "postgres");
live("Drizzle", ({ sql }, { drizzle }) => [
  (client, use) => drizzle(client).transaction((tx) => use(fromDrizzle(tx, sql))),
  (client) => fromDrizzle(drizzle(client), sql),
], "drizzle-orm", "drizzle-orm/node-postgres");
live("Kysely", ({ Kysely, PostgresDialect }) => {
  const over = (client) => new Kysely({ dialect: new PostgresDialect({ pool: { connect: async () => Object.assign(client, { release() {} }), end() {} } }) });
  return [
    (client, use) => over(client).transaction().execute((trx) => use(fromKysely(trx))),
    (client) => fromKysely(over(client)),
  ];
}, "kysely");

for (const [name, adapter] of Object.entries(adapters)) {
  const [inside, outside] = adapter;
  const skip = options.skip || (typeof adapter === "string" && adapter);
  test(`${name}: the intent commits once with the state, and what is refused leaves nothing`, { ...options, skip }, () => agent(async (client) => {
    const run = randomUUID();
    const act = (changed, end = (recorded) => recorded) => inside(client, async (database) => {
      await database.execute("INSERT INTO agent_state (run) VALUES ($1)", [run]);
      return end(await enqueue(database, intent(run, changed)));
    });
    const counts = async () => Object.values((await admin(
      "SELECT (SELECT count(*) FROM agent_state WHERE run = $1)::int, (SELECT count(*) FROM outbox.intent WHERE agent_run_id = $1)::int AS intents", [run]))[0]);
    await assert.rejects(act({}, () => { throw new Error("rolled back"); }), /rolled back/);
    assert.deepEqual(await counts(), [0, 0]);
    const first = await act();
    assert.ok(first.created && first.key.startsWith("idem_v1_"));
    const again = await act();
    assert.deepEqual([again.created, again.id, again.key], [false, first.id, first.key]);
    await assert.rejects(act({ payload: { amount: 9 } }), (error) =>
      error instanceof esm.KeyTaken && error.intentId === first.id && error.key === first.key && error.status === "pending" || assert.fail(error));
    for (const [code, kind] of Object.entries({ OB003: esm.Invalid, OB004: esm.UnknownTool, OB005: esm.OtherTenant, OB006: esm.LimitReached }))
      await assert.rejects(act({ tool: `refused/${code}` }), (error) => error instanceof kind && error.hint === "come back" || assert.fail(error));
    assert.deepEqual(await counts(), [2, 1]);
    await assert.rejects(enqueue(outside(client), intent(run, { step: "autocommit" })), esm.NotInTransaction);
    assert.deepEqual(await counts(), [2, 1]);
    const exact = await act({ step: "exact", payload: { n: 2n ** 53n + 1n, text: "'$1 é" } });
    assert.deepEqual(await admin("SELECT payload::text FROM outbox.intent WHERE id = $1", [exact.id]), [{ payload: '{"n": 9007199254740993, "text": "\'$1 é"}' }]);
  }));
}

test("a missing role and an aborted transaction are named", options, async () => {
  const name = new URL(process.env.DRAINER_TEST_AGENT).username;
  const asks = (client) => enqueue(fromPg(client), intent(randomUUID()));
  await agent(async (client) => {
    await client.query("BEGIN");
    await assert.rejects(client.query("SELECT 1 / 0"));
    await assert.rejects(asks(client), (error) => error instanceof esm.TransactionAborted && error.cause.code === "25P02" || assert.fail(error));
    await client.query("ROLLBACK");
  });
  await admin(`REVOKE outbox_agent FROM ${name}`);
  try {
    const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT });
    await agent(async (client) => {
      await client.query("BEGIN");
      const named = (error) => error instanceof esm.NotAllowed && /GRANT outbox_agent.*permission denied/.test(error.message) || assert.fail(error);
      await assert.rejects(asks(client), named);
      await client.query("ROLLBACK");
      await assert.rejects(new Results(fromPg(pool)).wait("1", { timeout: 60_000 }), named);
    });
    await pool.end();
  } finally {
    await admin(`GRANT outbox_agent TO ${name}`);
  }
});

test("a Pool is no transaction, and serves results", options, async () => {
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT, max: 1 });
  try {
    await assert.rejects(enqueue(fromPg(pool), intent(randomUUID())), esm.NotInTransaction);
    const results = new Results(fromPg(pool));
    const act = (changed, inside = () => {}) => agent(async (client) => {
      await client.query("BEGIN");
      const recorded = await enqueue(fromPg(client), intent(run, changed));
      await inside(recorded, client);
      await client.query("COMMIT");
      return recorded;
    });
    const run = randomUUID();
    const done = await act({ tool: "ok/act" });
    const answer = await results.wait(done, { timeout: 60_000 });
    assert.deepEqual([answer.status, answer.providerRef, answer.response.amount], ["completed", `ref-${done.key}`, 1200]);
    await assert.rejects(results.wait(await act({ tool: "refuse/act" }), { timeout: 60_000 }), esm.Failed);
    await assert.rejects(results.wait(await act({ tool: "cut/act" }), { timeout: 60_000 }), esm.Unknown);
    assert.equal((await results.wait(await act({ step: "waits" }), { timeout: 200 })).status, "pending");
    await act({ step: "open" }, (recorded) => assert.rejects(results.wait(recorded), esm.NotCommitted));
    await act({ step: "waits" }, (recorded) => assert.rejects(results.wait(recorded), esm.NotCommitted)); // it is there from before
    await act({ step: "inside" }, (recorded, client) => assert.rejects(new Results(fromPg(client)).wait(recorded), esm.NotCommitted));
    const [settled] = await Promise.all([Promise.all(Array.from({ length: 1000 }, () => results.wait(done, { timeout: 60_000 })))]);
    assert.ok(settled.every(({ status }) => status === "completed"));
  } finally {
    await pool.end();
  }
});

test("a wait hears what settles over one more connection, and closes it", options, async () => {
  const name = `heard ${randomUUID()}`;
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT, max: 1, application_name: name });
  try {
    const heard = [];
    const database = fromPg(pool);
    const results = new Results({ ...database, listen: (tell, lost) => database.listen(() => { heard.push(1); tell(); }, lost) });
    const recorded = await record();
    const waits = Promise.all(Array.from({ length: 1000 }, () => results.wait(recorded, { timeout: 60_000 })));
    while (heard.length === 0) await new Promise((wake) => setTimeout(wake, 5)); // it listens
    const before = heard.length;
    await admin("INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'test', 'completed')", [recorded.id]);
    assert.ok((await waits).every(({ status }) => status === "completed"));
    assert.ok(heard.length > before, "it was found by asking alone");
    const connections = () => admin("SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = $1", [name]);
    while ((await connections())[0].n > 1) await new Promise((wake) => setTimeout(wake, 5));
  } finally {
    await pool.end();
  }
});

const pooler = process.env.DRAINER_TEST_POOLER;
test("a wait behind a pooler does not listen", { ...options, skip: options.skip || (pooler ? false : "no pgbouncer here") }, async () => {
  const said = [];
  class Client extends pg.Client {
    query(text, ...rest) {
      said.push(text);
      return super.query(text, ...rest);
    }
  }
  const pool = new pg.Pool({ connectionString: pooler, max: 1 });
  try {
    const results = new Results(fromPg({ Client, options: pool.options, query: (text, values) => pool.query(text, values) }));
    const recorded = await record();
    const wait = results.wait(recorded, { timeout: 60_000 });
    while (said.length === 0) await new Promise((wake) => setTimeout(wake, 5)); // it looks whose session it has
    await admin("INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'test', 'completed')", [recorded.id]);
    assert.equal((await wait).status, "completed");
    assert.ok(!said.some((text) => text.startsWith("LISTEN")), said.join("; "));
  } finally {
    await pool.end();
  }
});

test("a wait goes on where its connections are cut", options, async () => {
  const name = `cut ${randomUUID()}`;
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT, application_name: name });
  try {
    const results = new Results(fromPg(pool));
    const recorded = await record();
    const wait = results.wait(recorded, { timeout: 60_000 });
    const cut = () => admin("SELECT count(pg_terminate_backend(pid))::int AS n FROM pg_stat_activity WHERE application_name = $1", [name]);
    for (let n = 0; n < 4; n += (await cut())[0].n) await new Promise((wake) => setTimeout(wake, 5));
    await admin("INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'test', 'completed')", [recorded.id]);
    assert.equal((await wait).status, "completed");
  } finally {
    await pool.end();
  }
});

test("a pool's own listener for errors stays the only one", () => {
  const added = [];
  const pool = (listeners) => ({ Client: class {}, options: {}, query() {}, listenerCount: () => listeners, on: (name) => added.push(name) });
  fromPg(pool(1));
  assert.deepEqual(added, []);
  fromPg(pool(0));
  assert.deepEqual(added, ["error", "connect"]);
});

test("a client that breaks in a transaction ends no program", options, async () => {
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT });
  try {
    fromPg(pool);
    const client = await pool.connect();
    await client.query("BEGIN");
    const ended = new Promise((tell) => client.once("end", tell));
    await admin("SELECT pg_terminate_backend($1)", [client.processID]);
    await ended;
    await assert.rejects(enqueue(fromPg(client), intent(randomUUID())));
    client.release();
    assert.deepEqual((await pool.query("SELECT 1 AS n")).rows, [{ n: 1 }]);
  } finally {
    await pool.end();
  }
});

// The others are raised by a trigger of this database, through every adapter.
test("the server's own refusals have their errors and say what to do", options, async () => {
  const run = randomUUID();
  const act = (url, changed) => connected(url, (client) => begun(fromPg)(client, (database) => enqueue(database, intent(run, changed))));
  const { DRAINER_TEST_AGENT: ours, DRAINER_TEST_TENANT: tenants } = process.env;
  const refused = (url, changed, kind, hint) =>
    assert.rejects(act(url, changed), (error) => error instanceof kind && hint.test(error.hint) || assert.fail(error));
  await act(ours);
  await refused(ours, { tool: "ok/atc" }, esm.UnknownTool, /Did you mean "ok\/act"\?/);
  await refused(tenants, {}, esm.OtherTenant, /begin yours with your tenant's name/);
  await act(tenants, { run: "acme" });
  await refused(tenants, { run: "acme", step: "again" }, esm.LimitReached, /Try again in \d+ s/);
});

test("a transaction whose answer to COMMIT was lost can be run again", options, async () => {
  const at = new URL(process.env.DRAINER_TEST_AGENT);
  const cutting = createServer((client) => { // cuts the connection in place of the answer
    const server = connect(Number(at.port), at.hostname);
    let committing = false;
    client.on("data", (sent) => {
      committing ||= sent.includes("COMMIT");
      server.write(sent);
    });
    server.on("data", (answer) => committing ? client.destroy() : client.write(answer));
    client.on("close", () => server.destroy());
    for (const socket of [client, server]) socket.on("error", () => {});
  });
  await new Promise((listens) => cutting.listen(0, "127.0.0.1", listens));
  const run = randomUUID();
  const act = async (client) => {
    client.on("error", () => {});
    await client.query("BEGIN");
    const recorded = await enqueue(fromPg(client), intent(run));
    await client.query("COMMIT");
    return recorded;
  };
  const through = new URL(at);
  through.host = `127.0.0.1:${cutting.address().port}`;
  await assert.rejects(connected(through.href, act), /Connection terminated/);
  const again = await agent(act);
  assert.equal(again.created, false);
  assert.equal((await admin("SELECT count(*)::int AS n FROM outbox.intent WHERE agent_run_id = $1", [run]))[0].n, 1);
  cutting.close();
});
