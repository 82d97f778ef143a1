// A client of vlsnlog, written from docs/http.md alone: node client.mjs URL,URL,URL NAME COUNT
// It appends COUNT entries exactly once, reads them back, follows the log, and commits a consumer's position.

const urls = process.argv[2].split(",");
const [name, count] = [process.argv[3], Number(process.argv[4])];
const safe = ["no-master", "queue-full", "insufficient-replicas", "no-space", "no-segment", "not-ready"];
const unknown = ["outcome-unknown"];
let at = 0; // the node that answered last

// Calls the nodes in turn until one answers. fetch follows a 307 to the master, with method and body.
// With `again` a call whose outcome is unknown is sent again, too: a repeat must change nothing.
async function call(path, { again = true, seconds = 60, ...options } = {}) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    let why;
    try {
      const signal = AbortSignal.timeout(35_000);
      const answer = await fetch(urls[at % urls.length] + path, { ...options, signal });
      if (answer.ok) return answer;
      const problem = await answer.json(); // every refusal is a problem document
      why = new Error(`${problem.type}: ${problem.detail}`);
      if (!safe.includes(problem.type) && !(again && unknown.includes(problem.type))) throw Object.assign(why, { final: true });
    } catch (error) {
      if (error.final || !again) throw error;
      why = error; // no connection, or no answer in time
    }
    if (Date.now() > end) throw why;
    at += 1;
    await new Promise((done) => setTimeout(done, 200));
  }
}

const json = { "Content-Type": "application/json" };
const lines = (text) => text.split("\n").filter(Boolean).map((line) => JSON.parse(line));

// Appends a batch as one atomic submission of a producer: sent again, it is logged once.
async function append(producer, sequence, born, values) {
  const body = values.map((value) => JSON.stringify({ key: name, value }) + "\n").join("");
  const path = `/v1/entries?producer=${producer}&sequence=${sequence}&born=${born}`;
  const answer = await call(path, { method: "POST", headers: { "Content-Type": "application/x-ndjson" }, body });
  return answer.json();
}

// Yields the entries of `name` from a VLSN on, for ever: a long-poll of NDJSON after another.
async function* tail(from) {
  for (;;) {
    const answer = await call(`/v1/entries?from=${from}&key=${encodeURIComponent(name)}&wait=20`);
    yield* lines(await answer.text());
    from = answer.headers.get("Vlsnlog-Next");
  }
}

const producer = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
const { durable } = await (await call(`/v1/producers/${producer}`)).json();
const values = Array.from({ length: count }, (_, index) => `${name} ${index}`);
let first = 0;
for (let index = 0; index < count; index += 1) {
  const appended = await append(producer, index, durable, [values[index]]);
  first ||= appended.first;
  console.log(`appended ${appended.first}`);
}
const seen = [];
for await (const entry of tail(first)) {
  seen.push(entry);
  if (seen.length === count) break;
}
if (seen.some((entry, index) => entry.value !== values[index])) throw new Error("the log has other entries");
const next = seen.at(-1).vlsn + 1;
await call(`/v1/consumers/${name}`, { method: "PUT", headers: json, body: JSON.stringify({ next, by: producer }) });
console.log(`committed ${(await (await call(`/v1/consumers/${name}?consistency=linearizable`)).json()).next}`);
