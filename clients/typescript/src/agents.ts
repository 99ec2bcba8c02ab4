/** Makes tools for agent frameworks whose calls become intents. It imports no framework. */
import { Database, DrainerError, enqueue, fromPg, Intent, NotCommitted, Results } from "./index.js";

/** The model reads FAULT if the commit fails. The commit may have happened before its reply was lost. */
export const FAULT = "It may have been recorded. Asking for it once more with the same values is safe.";
/** The model reads this instead if the step is FROM_TOOL_USE_ID, because its next request is another step. */
export const FAULT_OF_A_NEW_STEP = "It may have been recorded. Do not ask for it again, because it could be done twice. Tell the user.";
/** The model reads NOT_RECORDED if the program or the database fails before the commit. */
export const NOT_RECORDED = "It was not recorded this time, because the program or its database failed. Tell the user.";

/**
 * FROM_TOOL_USE_ID as a step stands for the id of the model's request. A model that asks again makes a new id, and the
 * effect happens again. So use it only for effects that may happen twice in a run, and only in a hook, which gets the id.
 */
export const FROM_TOOL_USE_ID = Symbol("FROM_TOOL_USE_ID");

/** How the tools of a run commit, and how they wait for results. */
export interface Ways<Client> {
  run: string;
  /** Runs use in a transaction of the agent's database and commits it, or rolls it back if use rejects. */
  transaction<T>(use: (client: Client, database: Database) => Promise<T>): Promise<T>;
  results: Results;
  /** Gets the errors that the model does not see, because their text may hold values. The default is console.error. */
  onError?(tool: string, error: unknown): void;
}

// The Results of each pool. A server belongs to one run, but each Results listens on a connection of its own.
const waiting = new WeakMap<object, Results>();

/** Returns Ways over a Pool of node-postgres. All runs over one pool share one Results. */
export function overPg(pool: any, run: string): Ways<any> {
  const results = waiting.get(pool) ?? new Results(fromPg(pool));
  waiting.set(pool, results);
  return {
    run,
    results,
    async transaction(use) {
      const client = await pool.connect();
      let broken: unknown;
      const lost = () => {}; // the next query fails too; without a listener Node would end the program
      client.on("error", lost);
      try {
        await client.query("BEGIN");
        const used = await use(client, fromPg(client));
        await client.query("COMMIT");
        return used;
      } catch (error) {
        await client.query("ROLLBACK").catch((failed: unknown) => { broken = failed; });
        throw error;
      } finally {
        client.off("error", lost);
        client.release(broken);
      }
    },
  };
}

/** A text for the model to read. */
export interface Answer {
  text: string;
  isError: boolean;
}

/** A tool whose calls each become one intent of a run. */
export interface OutboxTool<Arguments = any, Client = any> {
  name: string;
  /** Tells the model when to use the tool. */
  description: string;
  /** Describes the arguments in the form that the framework takes: an object of Zod types for the Claude Agent SDK and MCP. */
  schema: any;
  /** Names the purpose within the run, or is FROM_TOOL_USE_ID. */
  step: string | typeof FROM_TOOL_USE_ID;
  /** Returns the record that the effect is about. */
  scope(given: Arguments): string;
  /** Milliseconds to wait for the result. 0 or undefined does not wait. */
  wait?: number;
  /** Writes the agent's own state, and returns the payload. It does not commit. */
  act(client: Client, given: Arguments): unknown;
}

/** Makes a tool whose calls become intents for tool, `<provider>/<operation>`. Throws TypeError without a description. */
export function outboxTool<Arguments = any, Client = any>(tool: string, made: OutboxTool<Arguments, Client>): OutboxTool<Arguments, Client> & { tool: string } {
  if (made.description.trim() === "") throw new TypeError(`${made.name} needs a description: it tells the model when to use the tool`);
  return { ...made, tool };
}

type Made = ReturnType<typeof outboxTool>;

/** Commits the intent with the agent's state, waits for its result if the tool has a wait, and resolves to the answer. It does not reject. */
export async function call(
  tool: Made, given: any, ways: Ways<any>, toolUseId?: string, recorded: (answer: Answer) => void = () => {}, // gets the answer before the wait
): Promise<Answer> {
  let commits = false;
  let intent: Intent | undefined;
  try {
    const step = tool.step === FROM_TOOL_USE_ID ? toolUseId : tool.step as string;
    if (!step) throw new TypeError(`${tool.name} takes its step from the tool use id, and there is none here; only a hook is told it`);
    intent = await ways.transaction(async (client, database) => {
      const payload = await tool.act(client, given);
      const enqueued = await enqueue(database, { run: ways.run, step, tool: tool.tool, scope: tool.scope(given), payload });
      commits = true;
      return enqueued;
    });
    if (!tool.wait) return { text: intent.forModel, isError: false };
    recorded({ text: intent.forModel, isError: false });
    const done = await ways.results.wait(intent, { timeout: tool.wait });
    const reference = done.status === "completed" && done.providerRef !== null ? ` Reference: ${done.providerRef}` : "";
    return { text: done.forModel + reference, isError: false };
  } catch (error) {
    if (error instanceof DrainerError && error.forModel) return { text: error.forModel, isError: true };
    (ways.onError ?? ((name, shown) => console.error(`drainer: the tool ${name} failed:`, shown)))(tool.name, error);
    if (intent && !(error instanceof NotCommitted)) return { text: intent.forModel, isError: false }; // only the wait for its result failed
    return commits ? fault(tool) : { text: NOT_RECORDED, isError: true };
  }
}

/** Returns the answer if it is not known whether the intent was recorded. */
const fault = (tool: Made): Answer => ({ text: tool.step === FROM_TOOL_USE_ID ? FAULT_OF_A_NEW_STEP : FAULT, isError: true });

function handler(tool: Made, ways: Ways<any>) {
  if (tool.step === FROM_TOOL_USE_ID) throw new TypeError(`${tool.name} takes its step from the tool use id, which a handler is not told; use outboxHook`);
  return async (given: any) => {
    const answer = await call(tool, given, ways);
    return { content: [{ type: "text" as const, text: answer.text }], isError: answer.isError };
  };
}

/**
 * Returns an in-process MCP server of these tools for the option mcpServers of the Claude Agent SDK. sdk is the module
 * from import("@anthropic-ai/claude-agent-sdk"). A server belongs to one run, so the model cannot name another run.
 */
export function outboxServer(
  sdk: { tool(...given: any[]): any; createSdkMcpServer(options: any): any }, name: string, tools: Made[], ways: Ways<any>, version = "1.0.0",
): any {
  return sdk.createSdkMcpServer({
    name, version, tools: tools.map((tool) => sdk.tool(tool.name, tool.description, tool.schema, handler(tool, ways))),
  });
}

/** Adds these tools to an McpServer of the official MCP SDK for TypeScript. */
export function addToMcpServer(server: { registerTool(name: string, config: any, handler: any): unknown }, tools: Made[], ways: Ways<any>): void {
  for (const tool of tools) server.registerTool(tool.name, { description: tool.description, inputSchema: tool.schema }, handler(tool, ways));
}

/**
 * Returns a PreToolUse hook for the Claude Agent SDK that makes intents of calls of the framework's tools. The names in
 * tools are as the SDK writes them. The hook denies the call itself, with the answer as the reason, so that only drainer
 * acts. It does not touch calls of other tools.
 *
 * The hook denies after timeout milliseconds at the latest. The timeout of its matcher must be longer: when that one is
 * over, the SDK lets the call through, and the tool acts in addition to drainer.
 */
export function outboxHook(tools: Record<string, Made>, ways: Ways<any>, { timeout = 50_000 }: { timeout?: number } = {}) {
  return async (given: { tool_name?: string; tool_input?: unknown }, toolUseId: string | undefined): Promise<any> => {
    const tool = Object.prototype.hasOwnProperty.call(tools, given.tool_name ?? "") ? tools[given.tool_name!] : undefined;
    if (tool === undefined) return {};
    let timer: any;
    let known = fault(tool);
    const late = new Promise<Answer>((resolve) => { timer = setTimeout(() => resolve(known), Math.min(timeout, 2 ** 31 - 1)); }); // a longer timeout would become 1 ms
    const asked = call(tool, given.tool_input ?? {}, ways, toolUseId, (answer) => { known = answer; });
    const answer = await Promise.race([asked, late]).finally(() => clearTimeout(timer));
    return { hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: answer.text } };
  };
}
