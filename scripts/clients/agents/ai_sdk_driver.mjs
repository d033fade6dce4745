// The AI SDK: @ai-sdk/openai-compatible, and @ai-sdk/openai with its default, responses. Run `node
// ai_sdk_driver.mjs URL MODEL` in the folder with node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, model, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const settings = { baseURL: `${url}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({
  ...settings,
  name: "ours",
  supportsStructuredOutputs: true,
})(model);
const openai = createOpenAI(settings);
const said = "Good morning";
const say = `Say "${said}".`;
const call = 'Call get_weather with city="Bath", days=3.';
const found = "Rain in Bath";
const person = { name: "Jason", age: 25 };
const write = 'Write {"name": "Jason", "age": 25}.';
const schema = z.object({ name: z.string(), age: z.number().int() });
const asked = { maxRetries: 0, maxOutputTokens: 300 };
const tools = {
  get_weather: tool({
    description: "The weather to come.",
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async () => found,
  }),
};

function same(got, expected) {
  if (JSON.stringify(got) !== JSON.stringify(expected)) {
    throw new Error(`${JSON.stringify(got)} is not ${JSON.stringify(expected)}`);
  }
}

function called(result) {
  same(result.steps[0].toolCalls.map((item) => [item.toolName, item.input]), [
    ["get_weather", { city: "Bath", days: 3 }],
  ]);
}

async function text(of) {
  same((await generateText({ ...asked, model: of, prompt: say })).text, said);
}

async function withTools(of) {
  const result = await generateText({ ...asked, model: of, prompt: call, tools, stopWhen: stepCountIs(2) });
  called(result);
  same(result.text, found);
}

async function object(of) {
  same((await generateObject({ ...asked, model: of, prompt: write, schema })).object, person);
}

const columns = {
  text: async () => text(compatible),
  stream: async () => {
    let whole = "";
    for await (const piece of streamText({ ...asked, model: compatible, prompt: say }).textStream) {
      whole += piece;
    }
    same(whole, said);
  },
  tools: async () => withTools(compatible),
  "forced tool": async () => {
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
      called(await generateText({ ...asked, model: compatible, prompt: call, tools, toolChoice }));
    }
  },
  structured: async () => object(compatible),
  "default API": async () => {
    await text(openai(model));
    await text(openai.chat(model));
    await withTools(openai(model));
    await object(openai(model));
  },
};

const told = {};
for (const [column, check] of Object.entries(columns)) {
  try {
    await check();
    told[column] = "";
  } catch (error) {
    told[column] = `${error.name}: ${error.message} ${error.responseBody ?? ""}`.slice(0, 600);
  }
}
console.log("\n" + JSON.stringify({ columns: told }));
