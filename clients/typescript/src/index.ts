/** Enqueues intents for the effects of an agent's tools, in the agent's own transaction, and waits for their results. */
import { createHash } from "node:crypto";

type Row = Record<string, unknown>;

/** The functions that this package needs of a database client. Implement it for a client without an adapter here. */
export interface Database {
  /** Resolves to the rows as objects, with the columns in their order, under any names. */
  execute(text: string, values: readonly unknown[]): Promise<Row[]>;
  /** Throws NotInTransaction if no transaction is open. enqueue calls it; Results does not. */
  checkTransaction?(): Promise<void> | void;
  /**
   * Listens on a connection of its own, until the function to which it resolves is called. It calls heard for each
   * notification, and lost if the connection breaks and is not made again. Without listen, Results asks every 50 to 250 ms.
   */
  listen?(heard: () => void, lost: () => void): Promise<() => void>;
}

export interface NewIntent {
  run: string;
  step: string;
  tool: string;
  scope: string;
  payload: unknown;
  notBefore?: Date;
  headers?: Record<string, string>;
}

export interface Intent {
  readonly id: string;
  /** False if the intent existed already. status is then its present status. */
  readonly created: boolean;
  readonly status: string;
  /** The idempotency key that the provider gets. */
  readonly key: string;
  /** A sentence for the model, for a tool that does not wait for the result. */
  readonly forModel: string;
  /** The id of the transaction, by which Results refuses a wait inside of it. */
  readonly xid?: string;
}

export interface Completed {
  readonly status: "completed";
  readonly intentId: string;
  readonly providerRef: string | null;
  readonly response: unknown;
  readonly forModel: string;
}

/** The intent has not settled yet, and still will. This is no failure. */
export interface Pending {
  readonly status: "pending";
  readonly intentId: string;
  readonly forModel: string;
}

// The texts that a model reads. They are the same in Go and Python: see clients/vectors.json.
export const sentences: Readonly<Record<string, string>> = {
  recorded: "It is recorded. It will be carried out, or its failure reported. Do not ask for it again.",
  pending: "It is recorded and not done yet. It will be carried out, or its failure reported. Do not ask for it again.",
  completed: "It is done.",
  failed: "It failed and was not done. Do not ask for it again. Tell the user.",
  unknown: "It is not known whether it was done. A person is finding out. Do not ask for it again.",
  cancelled: "It was cancelled before anything was done. Do not ask for it again.",
  compensated: "It was done, and then undone. Do not ask for it again.",
  compensation_failed: "It was done. Undoing it failed, and a person has to undo it. Do not ask for it again.",
  key_taken: "This step was already asked for with other values. The first request stands. Do not ask for it again.",
  run_closed: "This run is closed. Nothing more of it will be done. Stop.",
  invalid: "It was not recorded, because the request is malformed. Tell the user.",
  unknown_tool: "It was not recorded, because there is no such tool. Tell the user.",
  other_tenant: "It was not recorded, because this run belongs to another tenant. Stop.",
  limit_reached: "It was not recorded, because a limit is reached. Stop for now. The same request can be made later.",
};

/** The base of every error of this package. */
export class DrainerError extends Error {
  /** A sentence for the model, without names, ids or payload. Empty for an error that a model cannot act on. */
  readonly forModel: string;
  cause?: unknown;
  constructor(message: string, sentence = "") {
    super(message);
    this.name = new.target.name;
    this.forModel = sentences[sentence] ?? "";
  }
}

/** There is no open transaction, so that the intent could not commit with the agent's state. */
export class NotInTransaction extends DrainerError {}

/** The intent is not there: its transaction is still open, or was rolled back. */
export class NotCommitted extends DrainerError {}

/** The login may not use the outbox: it lacks the role outbox_agent, which an administrator grants. */
export class NotAllowed extends DrainerError {}

/** An earlier statement failed and aborted the caller's transaction. Roll it back, and run all of it again. */
export class TransactionAborted extends DrainerError {}

/** The outbox refused the intent. Nothing was recorded, and the transaction is aborted. */
export class Refused extends DrainerError {
  hint?: string;
  /** Only of KeyTaken: the first intent, its key and its status. */
  intentId?: string;
  key?: string;
  status?: string;
}
export class KeyTaken extends Refused { constructor(message: string) { super(message, "key_taken"); } }
export class RunClosed extends Refused { constructor(message: string) { super(message, "run_closed"); } }
export class Invalid extends Refused { constructor(message: string) { super(message, "invalid"); } }
export class UnknownTool extends Refused { constructor(message: string) { super(message, "unknown_tool"); } }
export class OtherTenant extends Refused { constructor(message: string) { super(message, "other_tenant"); } }
export class LimitReached extends Refused { constructor(message: string) { super(message, "limit_reached"); } }

export const refusals: Readonly<Record<string, new (message: string) => Refused>> = {
  OB001: KeyTaken, OB002: RunClosed, OB003: Invalid, OB004: UnknownTool, OB005: OtherTenant, OB006: LimitReached,
};

/** The intent has settled, and its effect did not happen, was undone, or is in doubt. */
export class NotCompleted extends DrainerError {
  constructor(
    readonly intentId: string, readonly status: string,
    readonly providerRef: string | null, readonly response: unknown, readonly lastError: string | null,
  ) {
    super(`intent ${intentId} is ${status}`, status);
  }
}
export class Failed extends NotCompleted {}
export class Unknown extends NotCompleted {}
export class Cancelled extends NotCompleted {}
/** The effect happened and was undone. With the status compensation_failed a person has to undo it. */
export class Undone extends NotCompleted {}

export const outcomes: Readonly<Record<string, typeof NotCompleted>> = {
  failed: Failed, unknown: Unknown, cancelled: Cancelled, compensated: Undone, compensation_failed: Undone,
};

// Every value is sent as text, because a client's own treatment of jsonb would encode it twice.
const ENQUEUE =
  "SELECT intent_id::text, created, status, idempotency_key, pg_current_xact_id()::text AS xid FROM outbox.enqueue(" +
  "$1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text::timestamptz, $7::text::jsonb)";

/**
 * Records an intent in the client's open transaction, which the caller commits. If an intent with the same run, step,
 * tool and scope exists, it creates nothing and resolves to that intent. It rejects with NotInTransaction, KeyTaken,
 * RunClosed, Invalid, UnknownTool, OtherTenant, LimitReached, NotAllowed or TransactionAborted, or with the client's error.
 */
export async function enqueue(database: Database, intent: NewIntent): Promise<Intent> {
  const values = validated(intent);
  try {
    await database.checkTransaction?.();
    const [row] = await database.execute(ENQUEUE, values);
    const [id, created, status, key, xid] = columns(row);
    return { id: String(id), created: created === true, status: String(status), key: String(key), forModel: sentences.recorded, xid: String(xid) };
  } catch (error) {
    throw refusal(error) ?? misuse(error) ?? error;
  }
}

/** Returns a row's values in their order, because some clients rename columns, for example to camel case. */
const columns = (row: Record<string, unknown>): unknown[] => Object.values(row);

const bytes = (text: string) => new TextEncoder().encode(text).length;

/** Returns the arguments of outbox.enqueue, each as text. Throws Invalid for those that the server would refuse. */
export function validated(intent: NewIntent): (string | null)[] {
  for (const name of ["run", "step", "tool", "scope"] as const) {
    const part: unknown = intent[name];
    if (typeof part !== "string") throw new Invalid(`${name} is ${typeof part}; it must be text`);
    checkText(name, part);
    if (part === "") throw new Invalid(`${name} is empty`);
    if (bytes(part) > 255) throw new Invalid(`${name} is ${bytes(part)} bytes long; at most 255 are allowed`);
  }
  if (intent.step.startsWith("compensate:")) throw new Invalid('step begins with "compensate:", which is kept for undos');
  if (intent.tool.startsWith("/")) throw new Invalid("tool begins with a slash; write <provider>/<operation>");
  const { payload, notBefore, headers } = intent;
  if (payload === null || payload === undefined) throw new Invalid(`payload is ${payload}; write {} for none`);
  if (typeof payload === "string" && holdsJSON(payload)) {
    throw new Invalid("payload is a text that holds JSON; pass the value itself, not JSON.stringify of it");
  }
  const encoded = encode("payload", payload);
  if (bytes(encoded) > 1 << 20) throw new Invalid("payload is longer than 1 MiB; keep what is large elsewhere, and enqueue where it is");
  if (notBefore !== undefined && Number.isNaN(notBefore.getTime())) throw new Invalid("notBefore is no date");
  if (notBefore !== undefined && notBefore.getUTCFullYear() > 9998) throw new Invalid("notBefore is later than the year 9998");
  const carried = headers === undefined ? null : encode("headers", headers);
  if (carried !== null && bytes(carried) > 64 << 10) throw new Invalid("headers are longer than 64 KiB");
  return [intent.run, intent.step, intent.tool, intent.scope, encoded, notBefore?.toISOString() ?? null, carried];
}

/** Returns JSON. JSON.stringify would write null for NaN, throw on a bigint, and write a rounded integer. */
export function encode(where: string, value: unknown, depth = 0): string {
  if (depth > 200) throw new Invalid(`${where.split(/[.[]/)[0]} is nested more than 200 deep`);
  switch (typeof value) {
    case "string":
      checkText(where, value);
      return JSON.stringify(value);
    case "boolean":
    case "bigint":
      return String(value);
    case "number":
      if (!Number.isFinite(value)) throw new Invalid(`${where} is ${value}, which JSON cannot hold`);
      if (Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < 1e21) {
        throw new Invalid(`${where} is an integer beyond 2^53, and may be rounded already; pass a bigint`);
      }
      return JSON.stringify(value);
    case "object": {
      if (value === null) return "null";
      if (Array.isArray(value)) return `[${Array.from(value, (element, at) => encode(`${where}[${at}]`, element, depth + 1)).join(",")}]`;
      const kind = Object.getPrototypeOf(value);
      if (kind === null || Object.getPrototypeOf(kind) === null) {
        const members = Object.entries(value as object).filter(([, member]) => member !== undefined);
        return `{${members.map(([name, member]) => `${encode(where, name)}:${encode(`${where}.${name}`, member, depth + 1)}`).join(",")}}`;
      }
    }
  }
  const kind = typeof value === "object" ? (value as object).constructor?.name : typeof value;
  throw new Invalid(`${where} is ${kind}, which JSON cannot hold; pass text`);
}

function checkText(where: string, text: string): void {
  if (text.includes("\0")) throw new Invalid(`${where} has a NUL character, which Postgres cannot store`);
  if (/\p{Surrogate}/u.test(text)) throw new Invalid(`${where} has half a surrogate pair, which is no text`);
}

function holdsJSON(text: string): boolean {
  if (!/^\s*[{["]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Computes the key of an intent. Only the database knows the namespace and generation, so prefer Intent.key. A key never
 * has the name of a tenant of the outbox: leave tenant empty and pass the tenant's namespace.
 */
export function idempotencyKey(
  run: string, step: string, tool: string, scope: string,
  { namespace = "", tenant = "", generation = 1 }: { namespace?: string; tenant?: string; generation?: number } = {},
): string {
  const parts = [run, step, tool, scope];
  if (namespace !== "") parts.push(`ns=${namespace}`);
  if (tenant !== "") parts.push(`tenant=${tenant}`);
  if (generation > 1) parts.push(`gen=${generation}`);
  const netstrings = parts.map((part) => `${bytes(part)}:${part},`).join("");
  return `idem_v1_${createHash("sha256").update(netstrings, "utf8").digest("hex").slice(0, 32)}`;
}

/** Returns NotAllowed or TransactionAborted for causes that the program or its administrator must fix. */
function misuse(error: unknown): DrainerError | undefined {
  for (let cause: any = error, seen = 0; cause && seen < 8; cause = cause.cause ?? cause.meta, seen++) {
    let named: DrainerError;
    if (cause.code === "42501") {
      named = new NotAllowed(`the login may lack the role outbox_agent; an administrator runs GRANT outbox_agent TO it: ${cause.message}`);
    } else if (cause.code === "25P02") {
      named = new TransactionAborted(`an earlier statement failed and aborted this transaction; roll it back and begin again: ${cause.message}`);
    } else continue;
    named.cause = error;
    return named;
  }
  return undefined;
}

function refusal(error: unknown): Refused | undefined {
  for (let cause: any = error, seen = 0; cause && seen < 8; cause = cause.cause ?? cause.meta, seen++) {
    const kind = Object.prototype.hasOwnProperty.call(refusals, cause.code) ? refusals[cause.code] : undefined;
    if (!kind) continue;
    const refused = new kind(String(cause.message ?? kind.name).replace(/^outbox: /, ""));
    refused.hint = cause.hint;
    refused.cause = error;
    const first = /^Intent (\d+) holds the key (\S+) and is (\w+)\.$/.exec(cause.detail ?? "");
    if (first) [, refused.intentId, refused.key, refused.status] = first;
    return refused;
  }
  return undefined;
}

// From the second statement on settlements notify, so a look that follows misses none.
const CHANNEL = "outbox_settled";
const ARM = "SELECT FROM outbox.await('{}')";

// Behind a pooler the client's process id differs from the server's. A pooler would send the notifications of a LISTEN to
// its other clients, and PgBouncer from 1.18 to 1.20.0 may crash (pgbouncer#822).
const SESSION = "SELECT pg_catalog.pg_backend_pid() AS pid";

/** Adapts node-postgres: for enqueue a Client or PoolClient in a transaction, for Results a Pool. */
export function fromPg(client: {
  query(text: string, values?: any[]): Promise<{ rows: any[] }>; Client?: any; options?: any; listenerCount?(event: "error"): number; on?: any;
}): Database {
  const { Client: Listener, options } = client; // only a Pool has them
  // A Pool emits the error of an idle client that breaks, and a client in use emits its own. The next query fails too, and
  // without a listener Node would end the program.
  if (Listener && client.listenerCount?.("error") === 0) {
    client.on("error", () => {});
    client.on("connect", (made: any) => made.on("error", () => {}));
  }
  return {
    listen: Listener && options && (async (heard, lost) => {
      const listener = new Listener(options);
      listener.on("notification", heard);
      listener.on("error", lost);
      const stop = () => void listener.end().catch(() => {});
      try {
        await listener.connect();
        if (Number(columns((await listener.query(SESSION)).rows[0])[0]) !== listener.processID) {
          stop();
          return () => {};
        }
        await listener.query(`LISTEN ${CHANNEL}`);
        await listener.query(ARM);
      } catch (error) {
        stop();
        throw error;
      }
      heard();
      return stop;
    }),
    execute: async (text, values) => (await client.query(text, [...values])).rows,
    checkTransaction: async () => {
      try {
        await client.query("SAVEPOINT drainer; RELEASE SAVEPOINT drainer"); // one message; Postgres refuses it outside of a transaction
      } catch (error) {
        if ((error as { code?: string }).code !== "25P01") throw error;
        throw new NotInTransaction("no transaction is open; send BEGIN on this client first, and take no Pool for it");
      }
    },
  };
}

/** Adapts postgres.js: for enqueue the sql that sql.begin passes to its function, for Results the sql of the program. */
export function fromPostgresJs(
  sql: { unsafe(text: string, values?: any[]): PromiseLike<any>; savepoint?: unknown; listen?(channel: string, heard: () => void): Promise<{ unlisten(): unknown }> },
): Database {
  return {
    listen: sql.listen && (async (heard) => {
      const session = await sql.unsafe(SESSION);
      if (Number(columns(session[0])[0]) !== session.state?.pid) return () => {};
      const { unlisten } = await sql.listen!(CHANNEL, heard);
      await sql.unsafe(ARM).then(heard, () => {}); // each look repeats it
      return () => void (async () => unlisten())().catch(() => {}); // the program may have ended sql
    }),
    execute: async (text, values) => [...(await sql.unsafe(text, [...values]))],
    checkTransaction: () => {
      if (typeof sql.savepoint !== "function") throw new NotInTransaction("no transaction is open; pass what sql.begin gives to its function");
    },
  };
}

/** Adapts Prisma: for enqueue the tx of an interactive $transaction. */
export function fromPrisma(tx: { $queryRawUnsafe(text: string, ...values: any[]): PromiseLike<any>; $transaction?: unknown }): Database {
  return {
    execute: async (text, values) => await tx.$queryRawUnsafe(text, ...values),
    checkTransaction: () => {
      if (typeof tx.$transaction === "function") throw new NotInTransaction("this is the PrismaClient; pass the tx that $transaction gives to its function");
    },
  };
}

/** Adapts Drizzle: for enqueue the tx of a transaction, and the tag sql of drizzle-orm. */
export function fromDrizzle(
  tx: { execute(query: any): PromiseLike<any>; rollback?: unknown }, sql: (strings: any, ...values: any[]) => unknown,
): Database {
  return {
    execute: async (text, values) => {
      const pieces = text.split(/\$\d+/);
      const result = await tx.execute(sql(Object.assign(pieces, { raw: pieces }), ...values));
      return Array.isArray(result) ? result : result.rows;
    },
    checkTransaction: () => {
      if (typeof tx.rollback !== "function") throw new NotInTransaction("no transaction is open; pass the tx that db.transaction gives to its function");
    },
  };
}

/** Adapts Kysely: for enqueue the trx of a transaction. */
export function fromKysely(trx: { executeQuery(query: any): Promise<{ rows: any[] }>; isTransaction: boolean }): Database {
  return {
    execute: async (text, values) =>
      (await trx.executeQuery({
        sql: text, parameters: [...values], query: { kind: "RawNode", sqlFragments: [text], parameters: [] }, queryId: { queryId: "drainer" },
      })).rows,
    checkTransaction: () => {
      if (!trx.isTransaction) throw new NotInTransaction("no transaction is open; pass the trx that db.transaction().execute gives to its function");
    },
  };
}

const SETTLED = "SELECT intent_id::text, status, provider_ref, last_error, response::text FROM outbox.await($1::text::bigint[])";
// An intent settles only after its transaction has committed, so a wait inside of that transaction would never end.
const OPEN = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS open";
const STILL_OPEN = "SELECT xid::text FROM pg_catalog.unnest($1::text::xid8[]) xid WHERE NOT pg_visible_in_snapshot(xid, pg_current_snapshot())";
const QUICKEST = 50, SLOWEST = 250; // milliseconds between two looks, unless a notification comes
const RAREST = 30_000; // milliseconds at most from one try to listen to the next
const BREATH = 5; // milliseconds between two looks, however many notifications come
const BATCH = 1000;
const STUCK = 10_000; // milliseconds until a statement is given up, so that a dead connection does not block all waits
const UNANSWERED = 3; // statements without an answer, and one more after each MINUTE; each may hold a client of the program's pool
const MOST = 5; // statements without an answer at most; then one of them has to end before the next is sent
const MINUTE = 60_000;
const LONGEST = 2 ** 31 - 1; // the longest timeout of a timer; a longer one would become 1 ms

/** Reports whether waiting helps: after a lost connection, a restart, a shortage, or on a standby (25006) that may be promoted. */
export function passes(error: unknown): boolean {
  for (let cause: any = error, seen = 0; cause && seen < 8; cause = cause.cause ?? cause.meta, seen++) {
    // Node's own codes begin with E, and Prisma's with P.
    if (/^[0-9FHX][0-9A-Z]{4}$/.test(cause.code)) return /^(08|40|53|57|58|25006|25P04|55P03)/.test(cause.code);
  }
  return true;
}

/** Parses JSON with each integer beyond 2^53 as a bigint, or returns the text if JavaScript's parser fails. */
export function parse(text: string): unknown {
  // A JSON string from Postgres has no NUL, so a leading NUL marks a number.
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g, (token) => (token[0] === '"' ? token : `"\\u0000${token}"`));
  const unmark = (_: string, value: unknown) => {
    if (typeof value !== "string" || value[0] !== "\0") return value;
    return Number.isSafeInteger(Number(value.slice(1))) ? Number(value.slice(1)) : BigInt(value.slice(1));
  };
  try {
    return marked === text ? JSON.parse(text) : JSON.parse(marked, unmark);
  } catch {
    return text;
  }
}

interface Waiting {
  id: string;
  asked: boolean;
  xid?: string; // of a repeated enqueue, whose transaction may be open although the intent is visible
  resolve(answer: Completed | Pending): void;
  reject(error: unknown): void;
}

/**
 * Waits for results. One statement asks for all waits. It is sent when Postgres notifies of a settlement, and every 50 to
 * 250 ms. Behind a pooler there are no notifications.
 */
export class Results {
  private readonly waits = new Set<Waiting>();
  private running = false;
  private unanswered = 0; // statements without an answer, including those that were given up
  private unansweredSince = 0; // when the last one was sent, unless an answer came since
  private news = () => {}; // ends the pause before the next look
  private listenAgainAt = 0;
  private listenPause = SLOWEST; // milliseconds until the next try to listen, so that a server without a free connection is not asked at each look

  /** database must be outside of any transaction, such as fromPg(pool). */
  constructor(private readonly database: Database) {}

  /**
   * Resolves to Completed, or to Pending after timeout milliseconds. Call it after the commit.
   * Rejects with Failed, Unknown, Cancelled, Undone or NotCommitted, or with an error of the database that waiting does
   * not cure, such as NotAllowed.
   */
  async wait(intent: Intent | string, { timeout = 30_000 }: { timeout?: number } = {}): Promise<Completed | Pending> {
    const id = typeof intent === "string" ? intent : intent?.id;
    // One statement asks for all waits, so an id that it cannot take would end the other waits too.
    if (typeof id !== "string" || !/^\d{1,18}$/.test(id)) throw new TypeError("wait takes the Intent that enqueue resolved to, or its id as text");
    let timer: any;
    let waiting!: Waiting;
    try {
      return await new Promise<Completed | Pending>((resolve, reject) => {
        waiting = { id, asked: false, resolve, reject };
        if (typeof intent !== "string" && !intent.created && /^\d{1,20}$/.test(intent.xid ?? "")) waiting.xid = intent.xid;
        timer = setTimeout(() => resolve({ status: "pending", intentId: id, forModel: sentences.pending }), Math.min(timeout, LONGEST));
        this.waits.add(waiting);
        if (this.running) this.news();
        else void this.run();
      });
    } finally {
      clearTimeout(timer);
      this.waits.delete(waiting);
    }
  }

  private async run(): Promise<void> {
    this.running = true;
    let fresh = false;
    let wake = () => {};
    this.news = () => { fresh = true; wake(); };
    let listening: Promise<() => void> | undefined;
    for (let pause = QUICKEST; this.waits.size > 0; pause = fresh ? QUICKEST : Math.min(2 * pause, SLOWEST)) {
      fresh = false;
      const began = performance.now(); // not Date.now, because the machine's clock may be set
      const waits = [...this.waits];
      for (let start = 0; start < waits.length; start += BATCH) {
        const some = waits.slice(start, start + BATCH);
        try {
          await this.look(some);
        } catch (error) {
          if (!passes(error)) for (const waiting of some) waiting.reject(misuse(error) ?? error);
        }
      }
      await new Promise((wake) => setTimeout(wake, Math.min(Math.max(BREATH, performance.now() - began), SLOWEST)));
      if (this.waits.size === 0) break;
      const tried = performance.now();
      if (listening === undefined && this.database.listen && tried >= this.listenAgainAt) {
        this.listenAgainAt = tried + this.listenPause;
        this.listenPause = Math.min(2 * this.listenPause, RAREST);
        const lost = () => { // a later look tries to listen again
          if (listening !== mine) return;
          listening = undefined;
          if (performance.now() - tried > RAREST) this.listenPause = SLOWEST;
        };
        const mine: Promise<() => void> = (async () => this.database.listen!(this.news, lost))();
        listening = mine;
        // A look at the same time would take one more client of the program's pool.
        const begun = mine.then(() => {}, lost);
        await Promise.race([begun, new Promise((wake) => setTimeout(wake, pause))]);
      }
      if (!fresh) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, pause);
          wake = () => { clearTimeout(timer); resolve(); };
        });
      }
    }
    this.running = false;
    listening?.then((stop) => {
      this.listenAgainAt = 0;
      this.listenPause = SLOWEST;
      stop();
    }, () => {});
  }

  private async ask(text: string, values: unknown[]): Promise<any[]> {
    if (this.unanswered >= MOST || this.unanswered >= UNANSWERED && performance.now() - this.unansweredSince < MINUTE) throw new Error("no answer");
    this.unansweredSince = performance.now();
    this.unanswered++;
    const answer = (async () => this.database.execute(text, values))().finally(() => {
      this.unanswered--;
      this.unansweredSince = -MINUTE;
    });
    let timer: any;
    return await Promise.race([
      answer,
      new Promise<never>((_, reject) => { timer = setTimeout(reject, STUCK, new Error("no answer")); }),
    ]).finally(() => clearTimeout(timer));
  }

  private async look(waits: Waiting[]): Promise<void> {
    if (waits.some((waiting) => !waiting.asked)) {
      const [open] = columns((await this.ask(OPEN, []))[0]);
      if (open) {
        const error = new NotCommitted("this connection is in a transaction that has written; commit, and wait after that");
        for (const waiting of waits) if (!waiting.asked) waiting.reject(error);
        waits = waits.filter((waiting) => waiting.asked);
        if (waits.length === 0) return;
      }
      for (const waiting of waits) waiting.asked = true;
    }
    const rows = await this.ask(SETTLED, [`{${waits.map((waiting) => waiting.id).join(",")}}`]);
    const found = new Map(rows.map(columns).map(([id, ...rest]) => [String(id), rest]));
    for (const waiting of waits) {
      const row = found.get(waiting.id);
      if (row === undefined) continue; // it has not settled
      if (row[0] == null) {
        waiting.reject(new NotCommitted(
          `intent ${waiting.id} is not there; its transaction is open or was rolled back, or this login may not see it`));
        continue;
      }
      const [status, providerRef, lastError] = row as [string, string | null, string | null];
      const response: unknown = row[3] == null ? null : parse(String(row[3]));
      const outcome = outcomes[status];
      if (outcome) waiting.reject(new outcome(waiting.id, status, providerRef ?? null, response, lastError ?? null));
      else waiting.resolve({ status: "completed", intentId: waiting.id, providerRef: providerRef ?? null, response, forModel: sentences.completed });
    }
    waits = waits.filter((waiting) => waiting.xid !== undefined && !found.has(waiting.id));
    if (waits.length === 0) return;
    const open = new Set((await this.ask(STILL_OPEN, [`{${waits.map((waiting) => waiting.xid).join(",")}}`])).map((row) => columns(row)[0]));
    for (const waiting of waits) {
      if (open.has(waiting.xid)) waiting.reject(new NotCommitted(`intent ${waiting.id}: the transaction that enqueued it is open; commit, and wait after that`));
      waiting.xid = undefined;
    }
  }
}
