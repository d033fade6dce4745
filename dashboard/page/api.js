// The page's data: JSON by request, and a stream of it. If the node requires an API key, it is kept
// only in this tab's session storage.

const KEY = "tasuki-key";

export class KeyWanted extends Error {}

export function useKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function ask(path, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch(path, { headers, signal });
  if (reply.status === 401 || reply.status === 403) throw new KeyWanted();
  if (!reply.ok) throw new Error((await refusal(reply)) ?? `${path}: ${reply.status}`);
  return reply;
}

// The message of the node's rejection, with the fix.
async function refusal(reply) {
  const body = await reply.json().catch(() => null);
  return body?.error?.message;
}

export async function load(path) {
  return (await ask(path)).json();
}

// Calls take(value) for every value of a server-sent stream, until it ends.
export async function follow(path, take, signal) {
  const reader = (await ask(path, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    // Only the last overview matters.
    const last = parts.filter((part) => part.startsWith("data: ")).pop();
    if (last) take(JSON.parse(last.slice(6)));
  }
}
