// Tools of agent frameworks, against stand-ins after the types of the Claude Agent SDK for TypeScript 0.2.126 (tool,
// createSdkMcpServer, HookCallback) and of the MCP SDK for TypeScript 1.29.0 (registerTool), and a real Postgres.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { fromPg } from "@agent-drainer/client";
import { addToMcpServer, call, FAULT, FAULT_OF_A_NEW_STEP, FROM_TOOL_USE_ID, NOT_RECORDED, outboxHook, outboxServer, outboxTool, overPg } from "@agent-drainer/client/agents";

const require = createRequire(import.meta.url);
const { sentences } = JSON.parse(readFileSync(process.env.DRAINER_VECTORS, "utf8"));
let pg;
try {
  pg = require("pg");
} catch {
  console.log("no node-postgres here; install Debian's node-pg, or say NODE_PATH");
}
const options = { skip: pg ? false : "no node-postgres here", timeout: 120_000 };

const sdk = {
  tool: (name, description, inputSchema, handler) => ({ name, description, inputSchema, handler }),
  createSdkMcpServer: ({ name, version, tools }) => ({ type: "sdk", name, instance: { version, tools } }),
};
const charge = (tool = "parked/charge", changed = {}) => outboxTool(tool, {
  name: "charge", description: "Charge an invoice.", schema: { invoice: "z.string()", amount: "z.number()" }, step: "charge",
  scope: ({ invoice }) => invoice,
  act: async (client, { amount, run }) => {
    await client.query("INSERT INTO agent_state (run) VALUES ($1)", [run]);
    return { amount };
  },
  ...changed,
});

/** A run with a pool, which asks for the tool as each framework does. */
async function running(use, changed = {}) {
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT });
  const admin = new pg.Client({ connectionString: process.env.DRAINER_TEST_ADMIN });
  await admin.connect();
  const run = randomUUID();
  const errors = [];
  const ways = { ...overPg(pool, run), ...changed, onError: (tool, error) => errors.push(error) };
  const given = (changed) => ({ invoice: "invoice_442", amount: 1200, run, ...changed });
  try {
    await use({
      admin, errors, given, ways,
      ask: (tool, changed) => outboxServer(sdk, "billing", [tool], ways).instance.tools[0].handler(given(changed), {}),
      askOverMcp: (tool, changed) => {
        const added = {};
        addToMcpServer({ registerTool: (name, config, handler) => { added[name] = { config, handler }; } }, [tool], ways);
        assert.deepEqual(added.charge.config, { description: "Charge an invoice.", inputSchema: tool.schema });
        return added.charge.handler(given(changed), {});
      },
      hook: (tool, name, id) => outboxHook({ mcp__billing__charge: tool }, ways)({ hook_event_name: "PreToolUse", tool_name: name, tool_input: given() }, id, {}),
      counts: async () => Object.values((await admin.query(
        "SELECT (SELECT count(*) FROM outbox.intent WHERE agent_run_id = $1)::int, (SELECT count(*) FROM agent_state WHERE run = $1)::int AS states", [run])).rows[0]),
    });
  } finally {
    await pool.end();
    await admin.end();
  }
}
const said = (text, isError = false) => ({ content: [{ type: "text", text }], isError });

test("a loop that asks three times records once", options, () => running(async ({ ask, askOverMcp, counts }) => {
  for (const asked of [ask, ask, askOverMcp]) assert.deepEqual(await asked(charge()), said(sentences.recorded));
  assert.equal((await counts())[0], 1);
}));

test("another amount is refused and the state rolled back", options, () => running(async ({ ask, askOverMcp, counts }) => {
  await ask(charge());
  for (const asked of [ask, askOverMcp]) assert.deepEqual(await asked(charge(), { amount: 9 }), said(sentences.key_taken, true));
  assert.deepEqual(await counts(), [1, 1]);
}));

test("the result is waited for, and a wait that is over is no failure", options, () => running(async ({ ask }) => {
  assert.match((await ask(charge("ok/act", { wait: 60_000 }))).content[0].text, /^It is done\. Reference: ref-/);
  assert.deepEqual(await ask(charge("parked/charge", { wait: 50 })), said(sentences.pending));
  assert.deepEqual(await ask(charge("refuse/act", { wait: 60_000 })), said(sentences.failed, true));
}));

test("thirty runs wait over one pool with its one client and one listener", options, async () => {
  const name = `runs ${randomUUID()}`;
  const pool = new pg.Pool({ connectionString: process.env.DRAINER_TEST_AGENT, max: 1, application_name: name });
  const admin = new pg.Client({ connectionString: process.env.DRAINER_TEST_ADMIN });
  await admin.connect();
  const ask = (tool) => call(tool, { invoice: "invoice_442", amount: 1200 }, overPg(pool, `${name} ${randomUUID()}`));
  const recorded = "FROM outbox.intent WHERE tool_name = 'parked/charge' AND starts_with(agent_run_id, $1)";
  const value = async (sql) => Object.values((await admin.query(sql, [name])).rows[0])[0];
  const connections = () => value("SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1");
  try {
    const act = () => ({});
    const waits = Array.from({ length: 30 }, () => ask(charge("parked/charge", { wait: 60_000, act })));
    while (await value(`SELECT count(*)::int ${recorded}`) < 30);
    while (!await value("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle' AND query LIKE 'SELECT FROM outbox.await%')"));
    for (let n = 0; n < 3; n++) { // after each of these the thirty have been asked for once more, and still wait
      await ask(charge("ok/act", { wait: 60_000, act }));
      assert.ok(await connections() <= 2, `${await connections()} connections`);
    }
    await admin.query(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT id, 1, 'w', 'test', 'completed' ${recorded}`, [name]);
    for (const answer of await Promise.all(waits)) assert.deepEqual(answer, { text: sentences.completed, isError: false });
  } finally {
    await pool.end();
    await admin.end();
  }
});

test("a function that fails records nothing and shows the model nothing", options, () => running(async ({ ask, counts, errors }) => {
  const act = async (client, { run }) => {
    await client.query("INSERT INTO agent_state (run) VALUES ($1)", [run]);
    throw new Error("canary");
  };
  assert.deepEqual(await ask(charge("parked/charge", { act })), said(NOT_RECORDED, true));
  assert.deepEqual([await counts(), errors.map(({ message }) => message)], [[0, 0], ["canary"]]);
}));

test("a connection that is lost while the function works ends no program", options, () => running(async ({ admin, ask, counts, errors }) => {
  const act = async (client, { run }) => {
    await client.query("INSERT INTO agent_state (run) VALUES ($1)", [run]);
    const ended = new Promise((tell) => client.once("end", tell));
    await admin.query("SELECT pg_terminate_backend($1)", [client.processID]);
    await ended;
    return {};
  };
  assert.deepEqual(await ask(charge("parked/charge", { act })), said(NOT_RECORDED, true));
  assert.deepEqual([await counts(), errors.length], [[0, 0], 1]);
}));

test("a lost answer to the commit invites no second effect", options, () => running(async ({ given, ways, counts, errors }) => {
  const losing = { ...ways, async transaction(use) { await ways.transaction(use); throw new Error("the connection is lost"); } };
  for (const [step, text] of [["charge", FAULT], [FROM_TOOL_USE_ID, FAULT_OF_A_NEW_STEP]])
    assert.deepEqual(await call(charge("parked/charge", { step }), given(), losing, "toolu_1"), { text, isError: true });
  assert.deepEqual([(await counts())[0], errors.length], [2, 2]);
  assert.ok(FAULT.includes("is safe") && !FAULT_OF_A_NEW_STEP.includes("is safe"));
}));

test("what is recorded is said to be where the wait fails", options, () => running(async ({ ask, errors }) => {
  assert.deepEqual(await ask(charge("parked/charge", { wait: 60_000 })), said(sentences.recorded));
  assert.equal(errors.length, 1);
}, { results: { wait: async () => { throw new Error("no such database"); } } }));

test("a mistake of the program is told to the program and not to the model", options, async () => {
  const client = new pg.Client({ connectionString: process.env.DRAINER_TEST_AGENT });
  await client.connect();
  try {
    await running(async ({ ask, errors }) => {
      assert.deepEqual(await ask(charge()), said(NOT_RECORDED, true));
      assert.deepEqual(errors.map((error) => error.constructor.name), ["NotInTransaction"]);
    }, { transaction: (use) => use(client, fromPg(client)) }); // which has begun none
  } finally {
    await client.end();
  }
});

test("a hook denies the call that it records", options, () => running(async ({ hook, counts }) => {
  assert.deepEqual(await hook(charge(), "mcp__billing__charge"), {
    hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: sentences.recorded } });
  for (const other of ["Bash", "constructor", undefined]) assert.deepEqual(await hook(charge(), other), {});
  assert.deepEqual(await counts(), [1, 1]);
}));

test("a hook denies in time a call whose commit does not end", async () => {
  const ways = { run: "r", transaction: () => new Promise(() => {}) };
  for (const [step, text] of [["charge", FAULT], [FROM_TOOL_USE_ID, FAULT_OF_A_NEW_STEP]]) {
    const hook = outboxHook({ mcp__billing__charge: charge("parked/charge", { step }) }, ways, { timeout: 50 });
    const { permissionDecision, permissionDecisionReason } = (await hook({ tool_name: "mcp__billing__charge" }, "toolu_1")).hookSpecificOutput;
    assert.deepEqual([permissionDecision, permissionDecisionReason], ["deny", text]);
  }
});

test("a hook whose time is over during the wait says what is recorded", async () => {
  const ways = { run: "r", transaction: async () => ({ forModel: "recorded" }), results: { wait: () => new Promise(() => {}) } };
  const hook = outboxHook({ mcp__billing__charge: charge("parked/charge", { wait: 60_000 }) }, ways, { timeout: 50 });
  assert.equal((await hook({ tool_name: "mcp__billing__charge" }, "toolu_1")).hookSpecificOutput.permissionDecisionReason, "recorded");
});

test("a hook may have no limit", async () => {
  let answer;
  const ways = { run: "r", transaction: () => new Promise((resolve) => { answer = resolve; }) };
  const hook = outboxHook({ mcp__billing__charge: charge() }, ways, { timeout: Infinity });
  const decided = hook({ tool_name: "mcp__billing__charge" }, "toolu_1");
  assert.equal(await Promise.race([decided, new Promise((wake) => setTimeout(wake, 50, "waits"))]), "waits");
  answer({ forModel: "recorded" });
  assert.equal((await decided).hookSpecificOutput.permissionDecisionReason, "recorded");
});

test("a tool use id is a step only where it is told", options, () => running(async ({ ask, hook, counts, errors }) => {
  const tool = charge("parked/charge", { step: FROM_TOOL_USE_ID });
  for (const id of ["toolu_1", "toolu_1", "toolu_2", undefined]) await hook(tool, "mcp__billing__charge", id);
  assert.throws(() => ask(tool), /outboxHook/);
  assert.deepEqual([(await counts())[0], errors.length], [2, 1]);
}));

const frameworks = {
  "MCP SDK": ({ McpServer }, tool, ways) => {
    const server = new McpServer({ name: "billing", version: "1.0.0" });
    addToMcpServer(server, [tool], ways);
    return server;
  },
  "Claude Agent SDK": (names, tool, ways) => outboxServer(names, "billing", [tool], ways).instance,
};
const live = ["zod", ...["server/mcp", "client/index", "inMemory"].map((name) => `@modelcontextprotocol/sdk/${name}.js`)];
for (const [name, serve] of Object.entries(frameworks)) {
  let names, { skip } = options;
  try {
    names = Object.assign({}, ...[...live, ...(name === "MCP SDK" ? [] : ["@anthropic-ai/claude-agent-sdk"])].map(require));
  } catch (error) {
    skip ||= String(error.message).split("\n")[0];
  }
  test(`live ${name}: a client finds the tool, and its calls are one intent`, { ...options, skip }, () => running(async ({ ways, given, counts }) => {
    const { Client, InMemoryTransport, z } = names;
    const server = serve(names, charge("parked/charge", { schema: { invoice: z.string(), amount: z.number(), run: z.string() } }), ways);
    const client = new Client({ name: "agent", version: "1.0.0" });
    const ends = InMemoryTransport.createLinkedPair();
    await Promise.all([server.connect(ends[0]), client.connect(ends[1])]);
    assert.deepEqual((await client.listTools()).tools.map((tool) => tool.name), ["charge"]);
    const ask = async (changed) => {
      const { content, isError = false } = await client.callTool({ name: "charge", arguments: given(changed) });
      return { content, isError };
    };
    for (let n = 0; n < 2; n++) assert.deepEqual(await ask(), said(sentences.recorded));
    assert.deepEqual(await ask({ amount: 9 }), said(sentences.key_taken, true));
    assert.equal((await counts())[0], 1);
    await client.close();
  }));
}

test("a tool needs a description", () => assert.throws(() => charge("p/o", { description: " " }), /description/));
